"""What a metric is: how it is computed, whether higher is better, and what a bootstrap resamples."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from t2t_flax.config import Config
from t2t_flax.config.schema import HIGHER_IS_BETTER


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """The outputs to score, one line per example.

    hypotheses: what users see (`Task.postprocess`). references: one or more sets of references, in the same form. sources and
    outputs (the raw outputs of the model) are empty if records are compared. Raises ValueError for sides of different lengths.
    """

    hypotheses: Sequence[str]
    references: Sequence[Sequence[str]]
    sources: Sequence[str] = ()
    outputs: Sequence[str] = ()

    def __post_init__(self):
        if not self.references or any(len(r) != len(self.hypotheses) for r in self.references):
            lengths = ", ".join(str(len(lines)) for lines in self.references)
            raise ValueError(f"{len(self.hypotheses)} hypotheses, references of {lengths or 'no'} lines")


@dataclasses.dataclass(frozen=True)
class SentenceStatistics:
    """Sufficient statistics of a corpus metric, which is a function of their sum over sentences.

    values: [sentences, n]. score: the metric of a sum [n]. details: further entries of the record.
    signature (given a bootstrap's `bs` and `seed`) and method let others reproduce the score.
    """

    values: np.ndarray
    score: Callable[[np.ndarray], float]
    method: str = ""
    signature: Callable[..., str] = lambda **_: ""
    details: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def corpus_score(self) -> float:
        """The score of all sentences."""
        return float(self.score(self.values.sum(0)))

    def entry(self) -> dict[str, Any]:
        """The score as a record stores it."""
        texts = {"signature": self.signature(), **self.details, "how": self.method}
        return {"score": round(self.corpus_score, 4)} | {name: value for name, value in texts.items() if value != ""}


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric of a task.

    `statistics` makes a metric that can be resampled over sentences, and so compared between two systems; any other is computed
    by `compute`, which returns its entry in the record, `{"score": ..., ...}`. Both take (Predictions, Config).
    log_name: its name in eval.metric and metrics.jsonl (`valid_NAME`), if different. confidence_interval: whether records give
    one. applies: whether a config's records have it. unit, note: shown after the score; without a note its signature.
    """

    name: str
    display_name: str
    compute: Callable[[Predictions, Config], dict[str, Any]] | None = None
    higher_is_better: bool = True
    statistics: Callable[[Predictions, Config], SentenceStatistics] | None = None
    log_name: str = ""
    confidence_interval: bool = False
    applies: Callable[[Config], bool] = lambda config: True
    unit: str = ""
    note: str = ""

    @property
    def training_name(self) -> str:
        """Its name in eval.metric, and after `valid_` in metrics.jsonl."""
        return self.log_name or self.name

    def describe(self, entry: dict[str, Any]) -> str:
        """An entry of a record as a line of a summary."""
        value = f"{entry['score']:.2f}{self.unit}"
        if "confidence" in entry:
            value += f" ± {entry['confidence']['half_width']:.2f}"
        note = self.note or entry.get("signature", "")
        lower = "" if self.higher_is_better else "  (lower is better)"
        return f"  {self.display_name:14} {value:14} {note}{lower}".rstrip()


NAMES_IN_RECORDS = {"nll": "nll", "ppl": "perplexity"}
"""Of the metrics computed with the validation loss, those that records have too."""


def model_metrics() -> list[Metric]:
    """The metrics of every task, computed with the validation loss: without `compute` and `statistics`."""
    return [
        Metric(NAMES_IN_RECORDS.get(name, name), name, log_name=name, higher_is_better=higher)
        for name, higher in HIGHER_IS_BETTER.items()
    ]


def find_metric(metrics: Iterable[Metric], name: str) -> Metric | None:
    """The metric of a name in records or in metrics.jsonl (`valid_NAME`); `SET:NAME` is that of one of several test sets."""
    name = name.rpartition(":")[2].removeprefix("valid_")
    return next((metric for metric in metrics if name in (metric.name, metric.training_name)), None)


SEED = 12345
"""The default of sacreBLEU's command line."""


def draw_sentences(sentences: int, resamples: int, seed: int = SEED) -> np.ndarray:
    """int32 [resamples, sentences]: how often each resample contains each sentence.

    The resamples are those of sacreBLEU.
    """
    rng, counts = np.random.default_rng(seed), np.empty((resamples, sentences), np.int32)
    for row in counts:
        row[:] = np.bincount(rng.choice(sentences, size=sentences), minlength=sentences)
    return counts


def resampled_scores(statistics: SentenceStatistics, counts: np.ndarray) -> np.ndarray:
    """float64 [resamples]: the score of each resample; counts as from `draw_sentences`."""
    sums = (row.astype(statistics.values.dtype) @ statistics.values for row in counts)
    return np.array([statistics.score(row) for row in sums], np.float64)


def confidence_interval(statistics: SentenceStatistics, resamples: int, seed: int = SEED) -> dict[str, Any]:
    """The 95 % bootstrap interval of one score as a record stores it; mean and half width as sacreBLEU's."""
    counts = draw_sentences(len(statistics.values), resamples, seed)
    scores = np.sort(resampled_scores(statistics, counts))
    outside = resamples // 40
    low, high = float(scores[outside]), float(scores[resamples - outside - 1])
    return {
        "level": 0.95,
        "samples": resamples,
        "mean": round(float(scores.mean()), 4),
        "half_width": round((high - low) / 2, 4),
        "low": round(low, 4),
        "high": round(high, 4),
    }
