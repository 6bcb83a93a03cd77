"""A small model for several languages (docs/languages.md); sources are named by direction.

    python -m t2t_flax train --config=configs/many_languages.py --workdir=runs/many \\
        --config.data.root=DATA \\
        --config.data.train='en-de=train.en,train.de;de-en=train.de,train.en;en-cs=cs.en,cs.cs' \\
        --config.data.valid='en-de=valid.en,valid.de;de-en=valid.de,valid.en' \\
        --config.data.test='en-de=test.en,test.de;de-cs=test.de,test.cs'
    echo "A house." | python -m t2t_flax translate --workdir=runs/many --target-language=cs

Tuned as configs/text.py, for tens of thousands of short pairs of each direction on two CPU cores.
"""

from t2t_flax.config import default_config


def get_config():
    c = default_config()
    c.languages.directions = "by_name"
    c.mixtures.temperature = 5.0  # Arivazhagan et al. 2019
    c.data.vocab_size = 8000
    c.data.max_length, c.data.pack_length = 64, 64
    c.data.batch_tokens = 3000
    c.model.num_encoder_layers = c.model.num_decoder_layers = 3
    c.model.d_model, c.model.d_ff, c.model.num_heads = 128, 256, 4
    c.model.dropout = 0.1
    c.model.pad_vocab_to_multiple = 8
    c.optimizer.schedule, c.optimizer.peak_lr, c.optimizer.warmup_steps = "inverse_sqrt", 4e-3, 500
    c.train.steps = 9000
    c.eval.every_steps = 500
    c.checkpoint.every_steps = 100
    c.checkpoint.keep_last, c.checkpoint.average_last = 8, 8
    c.mesh.cpu_devices = 2
    c.log.every_steps = 50
    return c
