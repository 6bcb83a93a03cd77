"""WMT14 English-German as in the paper (5.1): `:base` or `:big`.

    python -m t2t_flax train --config=configs/wmt14_ende.py:base --workdir=runs/wmt14_base

Data comes from TensorFlow Datasets (no TensorFlow needed), or from your own files:
--config.data.train=train.en,train.de --config.data.valid=newstest2013.en,newstest2013.de
--config.data.test=newstest2014.en,newstest2014.de. Published (tokenised, cased, compounds split): base 27.3, big 28.4.
"""

from t2t_flax.config.presets import preset

PRESETS = {"base": "aiayn_base", "big": "aiayn_big"}


def get_config(size: str = "base"):
    if size not in PRESETS:
        raise KeyError(f"variant {size!r}: expected base or big")
    return preset(PRESETS[size])
