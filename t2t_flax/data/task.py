"""What makes a problem of the encoder-decoder: how examples are read, become token sequences, and how outputs are turned
into answers and scored. `data.task` names the file of `t2t_flax.tasks` that does it.
"""

import abc
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t2t_flax.config import Config, Data, Eval
from t2t_flax.data.sources.base import Source
from t2t_flax.data.tokenizers import TokenizerPair


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a score is computed from and a bootstrap resamples. values: [sentences, n]. percent: the score of their sum over
    sentences. how: the sentence, and signature (of a bootstrap's `bs` and `seed`) the line, that let others reproduce it.
    """

    values: np.ndarray
    percent: Callable[[np.ndarray], float]
    how: str = ""
    signature: Callable[..., str] = lambda **_: ""


class Task(abc.ABC):
    """A task under the keys of a config; examples and outputs are text, a source and a target side."""

    score: str
    """As `valid_...` its main score in training: the first of `spoken` on the validation set."""
    names: tuple[str, ...]
    """What `scores` has."""
    spoken: dict[str, str]
    """Those that two systems can be compared by (`counts`), the main one first, each as one says it."""
    prefixes = True
    """Whether users can give the beginning of an output."""

    def __init__(self, data: Data, scoring: Eval | None = None):
        self.data, self.scoring = data, scoring or Eval()

    def check(self) -> None:  # noqa: B027
        """Raises UserError where a package or a model is missing that `scores` needs."""

    @abc.abstractmethod
    def read(self, spec: str, *, seed: int, key: str) -> Source:
        """The examples that `spec` (the value of config key `key`) names. Raises UserError if they cannot be there."""

    @abc.abstractmethod
    def train_tokenizers(self, source: Source) -> TokenizerPair:
        """What makes token sequences of both sides, learned from the training examples."""

    def source(self, text: str) -> str:
        """A line of a user's as the examples have their source."""
        return text

    def target(self, source: str, text: str) -> str:
        """A user's answer to a source, in the form of `answer`, as the examples have their target. Raises UserError where
        it cannot be one.
        """
        return text

    def answer(self, source: str, output: str) -> str:
        """One line: what a user gets for an output of the model; of a target the reference."""
        return " ".join(output.splitlines())

    @abc.abstractmethod
    def scores(
        self,
        sources: Sequence[str],
        outputs: Sequence[str],
        references: Sequence[Sequence[str]],
        *,
        samples: int,
        brief: bool = False,
    ) -> dict[str, Any]:
        """Scores of a whole set, `{name: {"score": percent, "how" or "signature": text}}`.

        references: one or more sets of targets, each with one for each output. samples: of the bootstrap of the intervals,
        0 = none. brief: the main score will do.
        """

    @staticmethod
    @abc.abstractmethod
    def summary(scores: dict[str, Any]) -> list[str]:
        """Scores, and with them `perplexity`, in a few lines for people."""

    @abc.abstractmethod
    def counts(self, score: str, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        """What `score` of these answers is computed from, for each sentence. references: one or more sets of answers."""


def task_of(config: Config) -> Task:
    """The task that data.task names."""
    return task_class(config.data.task)(config.data, config.eval)


def task_class(name: str) -> type[Task]:
    """The class `Task` of t2t_flax.tasks.NAME, loaded when it is asked for: tasks know scores, which know this package."""
    return importlib.import_module(f"t2t_flax.tasks.{name}").TASK
