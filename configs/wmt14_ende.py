"""WMT14 English-German as in the paper (5.1): `:base` or `:big`.

    python -m t2t_flax train --config=configs/wmt14_ende.py:base --workdir=runs/wmt14_base

Data comes from TensorFlow Datasets (no TensorFlow needed), or from your own files:
--config.data.train=train.en,train.de --config.data.valid=newstest2013.en,newstest2013.de
--config.data.test=newstest2014.en,newstest2014.de. Published (tokenised, cased, compounds split): base 27.3, big 28.4.
"""

from t2t_flax.config import default_config


def get_config(size: str = "base"):
    c = default_config()
    c.data.train = "tfds:wmt14_translate/de-en:train"
    c.data.valid = "tfds:wmt14_translate/de-en:validation"
    c.data.test = "tfds:wmt14_translate/de-en:test"
    c.eval.bleu_every_steps, c.eval.bleu_sentences = 10_000, 500
    if size == "base":
        c.train.steps, c.checkpoint.every_steps = 100_000, 1500
        c.checkpoint.keep_last = c.checkpoint.average_last = 5
    elif size == "big":
        c.model.d_model, c.model.d_ff, c.model.num_heads = 1024, 4096, 16
        c.model.dropout = 0.3
        c.train.steps, c.checkpoint.every_steps = 300_000, 600
        c.checkpoint.keep_last = c.checkpoint.average_last = 20
    else:
        raise KeyError(f"variant {size!r}: expected base or big")
    return c
