"""Minimum Bayes risk decoding: of many candidates, the translation with the highest expected utility."""

from t2t_flax.registry import COMMANDS, Command

COMMANDS.add(
    "mbr",
    Command(
        "t2t_flax.extensions.mbr.command", "choose among candidates by their expected utility (minimum Bayes risk)"
    ),
)
