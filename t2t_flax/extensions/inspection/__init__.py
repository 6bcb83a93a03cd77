"""Inspection: what a run computes and how well it uses its devices."""

from t2t_flax.registry import EXPLAINED, add_group, add_hook

add_group("inspection", "t2t_flax.extensions.inspection.keys", "Inspection")
add_hook("mfu", "t2t_flax.extensions.inspection.mfu", when="inspection.mfu")
add_hook("profile", "t2t_flax.extensions.inspection.profile", when="inspection.profile_steps")
EXPLAINED.add("flops", "t2t_flax.extensions.inspection.explained_flops")
