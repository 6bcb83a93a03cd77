"""Your own parallel text with a small model.

    python -m t2t_flax train --config=configs/text.py --workdir=runs/mine \\
        --config.data.train=train.en,train.de --config.data.valid=valid.en,valid.de --config.data.test=test.en,test.de

Tuned for tens of thousands of short pairs on two CPU cores. For more text raise data.vocab_size, data.batch_tokens and
the model, lower model.dropout.
"""

from t2t_flax.config import default_config


def get_config():
    c = default_config()
    c.data.vocab_size = 4000
    c.data.max_length, c.data.pack_length = 64, 64
    c.data.batch_tokens = 3000
    c.model.num_encoder_layers = c.model.num_decoder_layers = 3
    c.model.d_model, c.model.d_ff, c.model.num_heads = 128, 256, 4
    c.model.dropout = 0.15
    c.model.pad_vocab_to_multiple = 8
    c.optimizer.schedule, c.optimizer.peak_lr, c.optimizer.warmup_steps = "inverse_sqrt", 4e-3, 500
    c.train.steps = 4500
    c.eval.every_steps = 250
    c.checkpoint.every_steps = 100
    c.checkpoint.keep_last, c.checkpoint.average_last = 8, 8
    c.mesh.cpu_devices = 2
    c.log.every_steps = 50
    return c
