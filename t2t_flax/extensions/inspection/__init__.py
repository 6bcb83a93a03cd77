"""Inspection: what a trained model attends to."""

from t2t_flax.registry import add_command

add_command(
    "attend",
    "t2t_flax.extensions.inspection.attend",
    "attention weights of every layer and head for a pair, as arrays and a picture",
)
