"""What the queues of a model hold: lines, pairs, other work; and what items of a batch share."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from t2t_flax.evaluation.restore import TrainedModel


@dataclasses.dataclass(frozen=True)
class Line:
    """A line to translate, its number within its request, the forced beginning of its translation, and how many of them."""

    number: int
    text: str
    prefix: str
    n_best: int


class Pair(NamedTuple):
    """A pair to score, or whose attention to compute; target None = the model's own translation."""

    source: str
    target: str | None


@dataclasses.dataclass(frozen=True)
class TranslateKey:
    """What lines of a batch share. n_best: hypotheses searched for, of which a request may return fewer. alone: differs from
    request to request where outputs depend on the line's number.
    """

    n_best: int
    prefix_length: int
    alone: object = None


class Work(NamedTuple):
    """Something else to be done with the run, in a thread of its own."""

    do: Callable[[TrainedModel], Any]


SCORES = "scores"
"""The key of all pairs to score: they share batches."""
