"""Reranking: a choice among candidates by scores of several models."""

from t2t_flax.registry import COMMANDS, TASKS, Command

TASKS.add("right_to_left", "t2t_flax.extensions.reranking.right_to_left:RightToLeft")
COMMANDS.add(
    "rerank",
    Command(
        "t2t_flax.extensions.reranking.rerank_command",
        "choose among candidates by a weighted sum of scores",
    ),
)
