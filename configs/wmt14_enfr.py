"""WMT14 English-French as in the paper (5.1): `:base` or `:big` (dropout 0.1, 5.4), 32,000 pieces.

    python -m t2t_flax train --config=configs/wmt14_enfr.py:big --workdir=runs/wmt14_enfr

Own files instead of TensorFlow Datasets: --config.data.train=train.en,train.fr and so on.
Published: base 38.1, big 41.0 (in the table of later versions 41.8).
"""

from t2t_flax.config.presets import preset

PRESETS = {"base": "aiayn_base_enfr", "big": "aiayn_big_enfr"}


def get_config(size: str = "base"):
    if size not in PRESETS:
        raise KeyError(f"variant {size!r}: expected base or big")
    return preset(PRESETS[size])
