"""The built-in English-German corpus with a small model: minutes on a laptop, no download.

    python -m t2t_flax train --config=configs/toy.py --workdir=runs/toy

The preset `toy` has the same values: `--config=toy` works where this file is not at hand. Every key
that is not set here has the paper's value; `explain --keys` lists them all.
"""

from t2t_flax.config import default_config


def get_config():
    c = default_config()

    # Data: simple sentences with their translations, 90,000 pairs to train on.
    c.data.train = "toy:train"
    c.data.valid = "toy:valid"
    c.data.test = "toy:test"
    c.data.vocab_size = 2000  # pieces that English and German share
    c.data.byte_fallback = False  # no piece for each byte: the corpus has few characters
    c.data.split_digits = True  # numbers are spelled digit by digit

    # Batches: 14 rows of 64 tokens an update, each packed with several sentences.
    c.data.max_length = 64
    c.data.pack_length = 64
    c.data.batch_tokens = 896

    # Model: the paper's, smaller.
    c.model.num_encoder_layers = 2
    c.model.num_decoder_layers = 2
    c.model.d_model = 128
    c.model.d_ff = 512
    c.model.num_heads = 4
    c.model.dropout = 0.0  # 90,000 pairs of few forms are enough text for this model

    # Optimizer: Adam. The rate rises for 300 updates and then falls with 1 / sqrt(t).
    c.optimizer.schedule = "inverse_sqrt"
    c.optimizer.peak_lr = 3e-3
    c.optimizer.warmup_steps = 300

    # The run: when it ends, and what it does on the way.
    c.train.steps = 1800
    c.eval.every_steps = 450  # the loss of the validation set
    c.checkpoint.every_steps = 450
    c.checkpoint.keep_last = 3
    c.log.every_steps = 50
    c.mesh.cpu_devices = 2  # two cores as two devices
    return c
