"""WMT14 English-French as in the paper (5.1): `:base` or `:big` (dropout 0.1, 5.4), 32,000 pieces.

    python -m t2t_flax train --config=configs/wmt14_enfr.py:big --workdir=runs/wmt14_enfr

Own files instead of TensorFlow Datasets: --config.data.train=train.en,train.fr and so on. Published: base 38.1, big 41.0
(in the table of later versions 41.8).
"""

from t2t_flax.config import default_config


def get_config(size: str = "base"):
    c = default_config()
    c.data.train = "tfds:wmt14_translate/fr-en:train"
    c.data.valid = "tfds:wmt14_translate/fr-en:validation"
    c.data.test = "tfds:wmt14_translate/fr-en:test"
    c.data.target_language = "fr"
    c.data.vocab_size = 32_000
    c.eval.bleu_every_steps, c.eval.bleu_sentences = 10_000, 500
    if size == "base":
        c.train.steps, c.checkpoint.every_steps = 100_000, 1500
        c.checkpoint.keep_last = c.checkpoint.average_last = 5
    elif size == "big":
        c.model.d_model, c.model.d_ff, c.model.num_heads = 1024, 4096, 16
        c.train.steps, c.checkpoint.every_steps = 300_000, 600
        c.checkpoint.keep_last = c.checkpoint.average_last = 20
    else:
        raise KeyError(f"variant {size!r}: expected base or big")
    return c
