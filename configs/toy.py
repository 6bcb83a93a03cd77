"""The built-in English-German corpus with a small model: minutes on a laptop, no download.

python -m t2t_flax train --config=configs/toy.py --workdir=runs/toy
"""

from t2t_flax.config import default_config


def get_config():
    c = default_config()
    c.data.train, c.data.valid, c.data.test = "toy:train", "toy:valid", "toy:test"
    c.data.vocab_size = 2000
    c.data.byte_fallback, c.data.split_digits = False, True
    c.data.max_length, c.data.pack_length = 64, 64
    c.data.batch_tokens = 896
    c.model.num_encoder_layers = c.model.num_decoder_layers = 2
    c.model.d_model, c.model.d_ff, c.model.num_heads = 128, 512, 4
    c.model.dropout = 0.0
    c.optimizer.schedule, c.optimizer.peak_lr, c.optimizer.warmup_steps = "inverse_sqrt", 3e-3, 300
    c.train.steps = 1800
    c.eval.every_steps = 450
    c.checkpoint.every_steps = 450
    c.checkpoint.keep_last = 3
    c.log.every_steps = 50
    c.mesh.cpu_devices = 2
    return c
