"""Optimizers and learning-rate schedules that are not the paper's."""

from t2t_flax.registry import OPTIMIZERS, SCHEDULES, add_group

_FOLDER = "t2t_flax.extensions.optimizers"

for _name in ("adafactor", "lion", "muon"):
    OPTIMIZERS.add(_name, f"{_FOLDER}.optimizers:{_name}")
for _name in ("cosine", "linear", "wsd"):
    SCHEDULES.add(_name, f"{_FOLDER}.schedules:{_name}")
add_group("optimizers", f"{_FOLDER}.keys", "Optimizers")
