"""Choose among candidates by scores of several models."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import key
from t2t_flax.registry import COMMANDS, DATA_HOOKS, GROUPS, Command


@dataclass(frozen=True)
class Rerank:
    right_to_left: bool = key(
        False,
        "the words of all targets are in reverse order, and so are the translations, for a model with which `rerank` scores",
    )

    @classmethod
    def of(cls, config: Config) -> "Rerank":
        """The group of a config."""
        return config.group("rerank")


GROUPS.add("rerank", Rerank)
DATA_HOOKS.add("t2t_flax.extensions.reranking.right_to_left", "rerank.right_to_left")
COMMANDS.add(
    "rerank",
    Command("t2t_flax.extensions.reranking.rerank_command", "choose among candidates by a weighted sum of scores"),
)
