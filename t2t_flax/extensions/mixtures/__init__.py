"""Mixtures: shares, tags and limits of the sources of data.train."""

from t2t_flax.registry import DATA_HOOKS, add_group

add_group("mixtures", "t2t_flax.extensions.mixtures.keys", "Mixtures")
DATA_HOOKS.add(
    "t2t_flax.extensions.mixtures.hook", *(f"mixtures.{key}" for key in ("shares", "temperature", "tags", "limits"))
)
