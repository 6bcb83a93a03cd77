"""Inspection: what a run computes, how well it uses its devices, and what a trained model attends to."""

from t2t_flax.registry import EXPLAINED, HOOKS, add_command, add_group

add_command(
    "attend",
    "t2t_flax.extensions.inspection.attend",
    "attention weights of every layer and head for a pair, as arrays and a picture",
)
add_group("inspection", "t2t_flax.extensions.inspection.keys", "Inspection")
HOOKS.add("t2t_flax.extensions.inspection.mfu", "inspection.mfu")
HOOKS.add("t2t_flax.extensions.inspection.profile", "inspection.profile_steps")
EXPLAINED.add("flops", "t2t_flax.extensions.inspection.explained_flops")
