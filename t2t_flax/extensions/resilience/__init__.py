"""Resilience: notices processes that hang, are dead or slow, names them, and ends the run instead of letting it wait."""

from t2t_flax.registry import HOOKS, WATCHERS, add_group

add_group("resilience", "t2t_flax.extensions.resilience.keys", "Resilience")
WATCHERS.add("resilience", "t2t_flax.extensions.resilience.watcher")
HOOKS.add("t2t_flax.extensions.resilience.stragglers", "resilience.straggler_share")
