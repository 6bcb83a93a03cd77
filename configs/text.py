"""Your own parallel text with a small model.

    python -m t2t_flax train --config=configs/text.py --workdir=runs/mine \\
        --config.data.train=train.en,train.de --config.data.valid=valid.en,valid.de \\
        --config.data.test=test.en,test.de

The preset `text` has the same values: `--config=text` works where this file is not at hand. Tuned
for tens of thousands of short pairs on two CPU cores. For more text raise data.vocab_size,
data.batch_tokens and the model, lower model.dropout.
"""

from t2t_flax.config import default_config


def get_config():
    c = default_config()

    # Data: pieces that both languages share. Longer sentences are left out and counted.
    c.data.vocab_size = 4000
    c.data.max_length = 64

    # Batches: 46 rows of 64 tokens an update, each packed with several sentences.
    c.data.pack_length = 64
    c.data.batch_tokens = 3000

    # Model: the paper's, smaller, with more dropout for little text.
    c.model.num_encoder_layers = 3
    c.model.num_decoder_layers = 3
    c.model.d_model = 128
    c.model.d_ff = 256
    c.model.num_heads = 4
    c.model.dropout = 0.15
    c.model.pad_vocab_to_multiple = (
        8  # rows of the embedding table: 128, the default, would add many to a small one
    )

    # Optimizer: Adam. The rate rises for 500 updates and then falls with 1 / sqrt(t).
    c.optimizer.schedule = "inverse_sqrt"
    c.optimizer.peak_lr = 4e-3
    c.optimizer.warmup_steps = 500

    # The run. The mean of the last eight checkpoints is evaluated at the end (6.1).
    c.train.steps = 4500
    c.eval.every_steps = 250  # the loss of the validation set
    c.checkpoint.every_steps = 100
    c.checkpoint.keep_last = 8
    c.checkpoint.average_last = 8
    c.log.every_steps = 50
    c.mesh.cpu_devices = 2  # two cores as two devices
    return c
