"""Constituency parsing (6.3): trees as sequences, scored by evalb's labelled F1."""

from t2t_flax.registry import PRESET_MODULES, TASKS

TASKS.add("parsing", "t2t_flax.extensions.parsing.task:Parsing")
PRESET_MODULES.append("t2t_flax.extensions.parsing.presets")
