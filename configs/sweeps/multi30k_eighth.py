"""The base model with widths / 8 and depths / 2 on Multi30k English-German.

It has d_model 64, d_ff 256, 8 heads of 8 and 3 layers, and is the baseline of the reduced Table 3.
One trial takes 15 minutes on one CPU core.
"""

from t2t_flax.config import default_config


def get_config():
    c = default_config()
    files = "{0}.en.gz,{0}.de.gz".format
    c.data.train, c.data.valid, c.data.test = files("train"), files("val"), files("test2016")
    c.data.corpus = "Multi30k"
    c.data.vocab_size = 4000
    c.data.max_length, c.data.pack_length = 64, 64
    c.data.batch_tokens = 1500
    c.model.d_model, c.model.d_ff, c.model.num_heads = 64, 256, 8
    c.model.num_encoder_layers = c.model.num_decoder_layers = 3
    c.model.pad_vocab_to_multiple = 8
    c.optimizer.schedule, c.optimizer.peak_lr, c.optimizer.warmup_steps = "inverse_sqrt", 4e-3, 500
    c.train.steps = 3500
    c.eval.every_steps = 500
    c.checkpoint.every_steps = 500
    c.checkpoint.keep_last = 1
    c.log.every_steps = 50
    c.mesh.cpu_devices = 1
    return c
