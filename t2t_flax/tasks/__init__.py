"""Tasks: reading and tokenizing examples, and scoring outputs.

Each task is a class, listed in `registry.TASKS` under its data.task.
"""

import abc
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from t2t_flax.config import Config, default_config, override, resolve
from t2t_flax.config.schema import HIGHER_IS_BETTER
from t2t_flax.data.hooks import config_of_set
from t2t_flax.data.sources import Source, one_line
from t2t_flax.data.splits import split_source
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS, TASKS, load_extensions

Entry: TypeAlias = dict[str, Any]
"""Metric in a record, as JSON."""


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """Outputs to score, one line per example.

    Raises ValueError for sides of different lengths.

    Args:
        hypotheses: outputs as users see them (`Task.postprocess`).
        references: one or more sets of references, in the same form.
        sources: source lines without control symbols; empty if records are compared.
        outputs: raw outputs of the model; empty if records are compared.
    """

    hypotheses: Sequence[str]
    references: Sequence[Sequence[str]]
    sources: Sequence[str] = ()
    outputs: Sequence[str] = ()

    def __post_init__(self):
        if not self.references or any(len(r) != len(self.hypotheses) for r in self.references):
            lengths = ", ".join(str(len(lines)) for lines in self.references)
            raise ValueError(
                f"{len(self.hypotheses)} hypotheses, references of {lengths or 'no'} lines"
            )


@dataclasses.dataclass(frozen=True)
class SentenceStatistics:
    """Sufficient statistics of a corpus metric.

    The metric is a function of their sum over sentences. `signature` and `method` let others
    reproduce the score.

    Args:
        values: statistics [sentences, n].
        score: computes the metric from a sum [n].
        method: description of the computation.
        signature: takes a bootstrap's `bs` and `seed`.
        details: further entries of the record.
    """

    values: np.ndarray
    score: Callable[[np.ndarray], float]
    method: str = ""
    signature: Callable[..., str] = lambda **_: ""
    details: Entry = dataclasses.field(default_factory=dict)

    @property
    def corpus_score(self) -> float:
        """Score of all sentences."""
        return float(self.score(self.values.sum(0)))

    def entry(self) -> Entry:
        """Return the score as a record stores it."""
        texts = {"signature": self.signature(), **self.details, "how": self.method}
        return {"score": round(self.corpus_score, 4)} | {
            name: value for name, value in texts.items() if value != ""
        }


@dataclasses.dataclass(frozen=True)
class Metric:
    """Metric of a task.

    Either `statistics` or `compute` computes it; both take (Predictions, Config). A metric with
    `statistics` can be resampled over sentences, and so compared between two systems.

    Args:
        compute: returns the metric's entry in the record, `{"score": ..., ...}`.
        log_name: name in eval.metric and metrics.jsonl (`valid_NAME`), if different.
        confidence_interval: whether records give a confidence interval.
        applies: whether records with a config have the metric.
        unit: shown after the score.
        note: shown after the score; by default the signature.
        of_entry: returns the statistics from an entry in a record, if they are too costly to
            compute again.
        reads_sources: whether the metric needs `Predictions.sources`.
        check: raises UserError if the metric cannot be computed on this machine.
    """

    name: str
    display_name: str
    compute: Callable[[Predictions, Config], Entry] | None = None
    higher_is_better: bool = True
    statistics: Callable[[Predictions, Config], SentenceStatistics] | None = None
    log_name: str = ""
    confidence_interval: bool = False
    applies: Callable[[Config], bool] = lambda config: True
    unit: str = ""
    note: str = ""
    of_entry: Callable[[Entry], SentenceStatistics] | None = None
    reads_sources: bool = False
    check: Callable[[Config], object] | None = None

    @property
    def training_name(self) -> str:
        """Name of the metric in eval.metric, and after `valid_` in metrics.jsonl."""
        return self.log_name or self.name

    def describe(self, entry: Entry) -> str:
        """Return an entry of a record as a line of a summary."""
        value = f"{entry['score']:.2f}{self.unit}"
        if "confidence" in entry:
            value += f" ± {entry['confidence']['half_width']:.2f}"
        note = self.note or entry.get("signature", "")
        lower = "" if self.higher_is_better else "  (lower is better)"
        return f"  {self.display_name:14} {value:14} {note}{lower}".rstrip()


class Task(abc.ABC):
    """Sequence-to-sequence problem under a config.

    Examples and outputs are lines of text. The class attribute `metrics` lists all metrics, the
    primary one first. The attribute of an instance has only the metrics that apply to its config.
    """

    metrics: Sequence[Metric]
    supports_prefixes: ClassVar[bool] = True
    """True if users can force the beginning of an output."""
    tokenizer_keys: Sequence[str] = ()
    """Config keys of an extension that `train_tokenizers` reads."""

    def __init__(self, config: Config):
        self.config = config
        added = (metric for _, group in config.extensions for metric in group.metrics())
        self.metrics = tuple(
            metric for metric in (*type(self).metrics, *added) if metric.applies(config)
        )

    def of_set(self, name: str) -> "Task":
        """Return the task of a training source, validation or test set, in its languages."""
        config = config_of_set(self.config, name)
        return self if config is self.config else type(self)(config)

    def validate_config(self) -> None:
        """Raise UserError for settings that this task does not support.

        Called once, before a run is prepared, trained or opened.
        """
        name, known = (
            self.config.eval.metric,
            [m.training_name for m in (*model_metrics(), *self.metrics)],
        )
        if name not in known:
            raise UserError(
                f"config.eval.metric = {name!r} is not a metric of config.data.task = "
                f"{self.config.data.task}; expected one of {', '.join(known)}."
            )

    def check_requirements(self) -> None:
        """Raise UserError for a missing package or model that the metrics need."""
        for metric in self.metrics:
            if metric.check:
                metric.check(self.config)

    @abc.abstractmethod
    def open_source(self, spec: str, *, key: str) -> Source:
        """Return the examples named by `spec`, the value of config key `key`.

        Raises UserError if there are none.
        """

    @abc.abstractmethod
    def train_tokenizers(self, source: Source) -> TokenizerPair:
        """Return tokenizers of both sides, trained on the training examples."""

    def preprocess_source(self, text: str) -> str:
        """Return a user's input line in the form of the training sources."""
        return text

    def preprocess_target(self, source: str, text: str) -> str:
        """Return a user's output line in the form of the training targets.

        Raises UserError for a text that is not a possible output for the source.

        Args:
            text: output in the form of `postprocess`.
        """
        return text

    def postprocess(self, source: str, output: str) -> str:
        """Return a model output or a training target as the single line that users see."""
        return one_line(output)

    def predictions(
        self, sources: Sequence[str], outputs: Sequence[str], targets: Sequence[Sequence[str]]
    ) -> Predictions:
        """Return model outputs and one or more sets of targets, ready to be scored."""
        hypotheses, *references = (
            [self.postprocess(source, text) for source, text in zip(sources, side, strict=True)]
            for side in (outputs, *targets)
        )
        return Predictions(hypotheses, references, sources, outputs)

    def metric(self, name: str) -> Metric:
        """Return the metric with this name in records."""
        return next(metric for metric in self.metrics if metric.name == name)

    def validation_metrics(self) -> list[Metric]:
        """Return the metrics computed when the validation set is decoded.

        They are the primary metric and the one named by eval.metric.
        """
        wanted = (self.metrics[0].training_name, self.config.eval.metric)
        return [metric for metric in self.metrics if metric.training_name in wanted]

    def summary(self, scores: Entry) -> list[str]:
        """Return the scores of a record in a few lines.

        Each comparable metric has a line, and the others follow.
        """
        shown = [metric for metric in self.metrics if metric.name in scores]
        lines = [metric.describe(scores[metric.name]) for metric in shown if metric.statistics]
        last = [
            f"{m.display_name} {scores[m.name]['score']:.1f}{m.unit}"
            for m in shown
            if not m.statistics
        ]
        return [*lines, "  " + "   ".join([*last, f"perplexity {scores['perplexity']:.3f}"])]


def task_of(config: Config) -> Task:
    """Return the task named by data.task. Raises UserError for an unknown task.

    See `Task.validate_config` for impossible settings.
    """
    load_extensions()
    name = config.data.task
    if name not in TASKS:
        raise UserError(f"config.data.task = {name!r} is none of {', '.join(TASKS)}.")
    return TASKS.load(name)(config)


class TextCounts(NamedTuple):
    pairs: int
    characters: int  # distinct ones, of both sides


def count_text(overrides: Mapping[str, str], most: int = 1_000_000) -> TextCounts:
    """Return counts of the first `most` training pairs, before any is filtered.

    For a config file that chooses its values by them. Raises UserError if they cannot be read.

    Args:
        overrides: text by key; those of `data` and of extensions say what to read.
    """
    load_extensions()
    groups = {"data", *GROUPS}
    return _count(
        frozenset((key, text) for key, text in overrides.items() if key.split(".")[0] in groups),
        most,
    )


@functools.cache  # a sweep reads its config for each trial
def _count(data: frozenset[tuple[str, str]], most: int) -> TextCounts:
    task = task_of(resolve(override(default_config(), dict(data))))
    pairs, characters = 0, set[str]()
    for row in itertools.islice(split_source(task, "train").read(), most):
        pairs += 1
        if not isinstance(row, str):  # the reason why a pair is dropped
            characters.update(*row)
    return TextCounts(pairs, len(characters))


def lower_is_better(name: str) -> bool:
    """Return whether lower values of a metric are better.

    `name` is any name of `find_metric`. A metric is the same in all tasks, and on each of several
    sets (`NAME/SET`). Raises UserError for a name that no task has.
    """
    load_extensions()
    of_tasks = (metric for task in TASKS for metric in TASKS.load(task).metrics)
    every = itertools.chain(model_metrics(), of_tasks, extension_metrics())
    if metric := find_metric(every, name.partition("/")[0]):
        return not metric.higher_is_better
    raise UserError(f"no task has a metric {name!r}.")


def extension_metrics() -> Iterator[Metric]:
    """Yield the metrics of all extensions."""
    load_extensions()
    for group in GROUPS.values():
        yield from group.metrics()


NAMES_IN_RECORDS = {"nll": "nll", "ppl": "perplexity"}
"""Names in records of metrics that are computed with the validation loss."""


def model_metrics() -> list[Metric]:
    """Return the metrics of every task that are computed with the validation loss.

    They have neither `compute` nor `statistics`.
    """
    return [
        Metric(NAMES_IN_RECORDS.get(name, name), name, log_name=name, higher_is_better=higher)
        for name, higher in HIGHER_IS_BETTER.items()
    ]


def find_metric(metrics: Iterable[Metric], name: str) -> Metric | None:
    """Return the metric with a name in records or in metrics.jsonl (`valid_NAME`).

    `SET:NAME` names the metric on one of several test sets.
    """
    name = name.rpartition(":")[2].removeprefix("valid_")
    return next((metric for metric in metrics if name in (metric.name, metric.training_name)), None)


SEED = 12345
"""Default of sacreBLEU's command line."""


def draw_sentences(sentences: int, resamples: int, seed: int = SEED) -> np.ndarray:
    """Return each sentence's count in each resample, int32 [resamples, sentences].

    The resamples equal sacreBLEU's.
    """
    rng, counts = np.random.default_rng(seed), np.empty((resamples, sentences), np.int32)
    for row in counts:
        row[:] = np.bincount(rng.choice(sentences, size=sentences), minlength=sentences)
    return counts


def resampled_scores(statistics: SentenceStatistics, counts: np.ndarray) -> np.ndarray:
    """Return the score of each resample, float64 [resamples].

    Args:
        counts: the result of `draw_sentences`.
    """
    sums = (row.astype(statistics.values.dtype) @ statistics.values for row in counts)
    return np.array([statistics.score(row) for row in sums], np.float64)


def confidence_interval(statistics: SentenceStatistics, resamples: int) -> Entry:
    """Return the 95 % bootstrap interval of one score as a record stores it.

    Mean and half width equal sacreBLEU's.
    """
    counts = draw_sentences(len(statistics.values), resamples)
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
