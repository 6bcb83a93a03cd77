"""Bulk translation: files of many lines, and scores of given pairs.

A job is resumed after a stop and shared by several processes.
"""

from t2t_flax.registry import COMMANDS, Command

COMMANDS.add(
    "translate_file",
    Command(
        "t2t_flax.extensions.bulk_translation.translate_file",
        "translate a large file: resumed after a stop, shared by several processes",
    ),
)
COMMANDS.add(
    "score", Command("t2t_flax.extensions.bulk_translation.score", "log-probability of given pairs")
)
