"""Recipes: presets of other codebases and papers, and the rows of the paper's Table 3."""

from t2t_flax.registry import PRESET_MODULES

PRESET_MODULES.append("t2t_flax.extensions.recipes.presets")
