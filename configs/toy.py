"""The built-in English-German corpus with a small model: minutes on a laptop, no download.

python -m t2t_flax train --config=configs/toy.py --workdir=runs/toy

It is the preset `toy`: `--config=toy` does the same where this file is not at hand.
"""

from t2t_flax.config.presets import preset


def get_config():
    return preset("toy")
