"""Multi30k English-German, cased and not tokenised, with a small model: half an hour on two cores.

    python -m t2t_flax train --config=configs/multi30k_small.py \\
        --config.data.root=DATA/multi30k/raw --workdir=runs/m1

data.root holds `SET.{en,de}.gz` (train, val, test2016).
"""

from t2t_flax.config.presets import preset


def get_config():
    c = preset("toy")
    c.data.train = "train.en.gz,train.de.gz"
    c.data.valid = "val.en.gz,val.de.gz"
    c.data.test = "test2016.en.gz,test2016.de.gz"
    c.data.vocab_size = 4000
    c.data.byte_fallback = True
    c.data.split_digits = False
    c.data.batch_tokens = 2000
    c.model.num_encoder_layers = c.model.num_decoder_layers = 3
    c.model.d_ff = 256
    c.model.dropout = 0.1
    c.optimizer.peak_lr = 4e-3
    c.train.steps = 1600
    c.eval.every_steps = 0
    c.checkpoint.every_steps = 200
    c.mesh.cpu_devices = 1
    return c
