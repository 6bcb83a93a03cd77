"""Noise: changed case, typos, emoji, placeholders and text to copy in training pairs, drawn anew in each pass."""

import dataclasses
from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import key
from t2t_flax.errors import UserError
from t2t_flax.registry import DATA_HOOKS, GROUPS


def _share(what: str) -> float:
    return key(0.0, f"share of training pairs {what}; drawn anew in each pass", low=0.0, high=1.0)


@dataclass(frozen=True)
class Noise:
    """Probabilities, in the order in which the changes are made."""

    unpunctuated: float = _share("without the final punctuation, on both sides")
    typos: float = _share("with typos in the source, in about every tenth word")
    lower_case: float = _share("with the source in lower case")
    title_case: float = _share("in title case, on both sides")
    upper_case: float = _share("in upper case, on both sides")
    placeholders: float = _share(
        "in which a word that both sides have is replaced by a placeholder such as {name}; others are left alone"
    )
    emoji: float = _share("with an emoji on both sides: beside a word that both have, else at the end")
    copies: float = _share("replaced by a few random words, the same on both sides")

    def check(self, config: Config) -> None:
        """Raises UserError for a task in which a source is more than text."""
        used = [field.name for field in dataclasses.fields(self) if getattr(self, field.name)]
        if used and config.data.task != "translation":
            raise UserError(
                f"config.noise.{used[0]} = {getattr(self, used[0])} changes text of data.task = translation, not of "
                f"{config.data.task}."
            )


GROUPS.add("noise", Noise)
DATA_HOOKS.add("t2t_flax.extensions.noise.hook", *(f"noise.{field.name}" for field in dataclasses.fields(Noise)))
