"""Bulk translation: files of many lines, resumed after a stop and shared by several processes; scores of given pairs."""

from t2t_flax.registry import COMMANDS, Command

COMMANDS.add(
    "translate_file",
    Command(
        "t2t_flax.extensions.bulk_translation.translate_file",
        "translate a large file: resumed after a stop, shared by several processes",
    ),
)
COMMANDS.add("score", Command("t2t_flax.extensions.bulk_translation.score", "log-probability of given pairs"))
