"""Inspection: what a trained model attends to, and profiles of a run."""

from t2t_flax.registry import HOOKS, add_command, add_group

add_command(
    "attend",
    "t2t_flax.extensions.inspection.attend",
    "attention weights of every layer and head for a pair, as arrays and a picture",
)
add_group("inspection", "t2t_flax.extensions.inspection.keys", "Inspection")
HOOKS.add("t2t_flax.extensions.inspection.profile", "inspection.profile_steps")
