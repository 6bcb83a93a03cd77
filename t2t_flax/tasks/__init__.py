"""Tasks of the encoder-decoder: how examples are read and tokenized, and how outputs are scored. Each is a module, listed in
`registry.TASKS` under its data.task.
"""

import abc
import difflib
from collections.abc import Sequence
from typing import Any, ClassVar

from t2t_flax.config import Config
from t2t_flax.data.hooks import config_of_set
from t2t_flax.data.sources import Source
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.registry import TASKS, absent_extension, load_extensions
from t2t_flax.tasks.metrics import NAMES_IN_RECORDS, Metric, Predictions, find_metric, model_metrics


class Task(abc.ABC):
    """A sequence-to-sequence problem under a config; examples and outputs are lines of text.

    `metrics` of the class lists all metrics, the primary one first; that of an instance only those
    that apply to its config.
    """

    metrics: Sequence[Metric]
    supports_prefixes: ClassVar[bool] = True
    """Whether users can force the beginning of an output."""

    def __init__(self, config: Config):
        self.config = config
        self.metrics = tuple(metric for metric in type(self).metrics if metric.applies(config))

    def of_set(self, name: str) -> "Task":
        """The task of one training source, validation set or test set, in its languages."""
        config = config_of_set(self.config, name)
        return self if config is self.config else type(self)(config)

    def validate_config(self) -> None:
        """Raises UserError for settings that this task cannot have."""
        name, known = self.config.eval.metric, self.training_metrics()
        if name not in known:
            raise UserError(
                f"config.eval.metric = {name!r} is not a metric of config.data.task = "
                f"{self.config.data.task}; expected one of {', '.join(known)}."
            )

    def check_requirements(self) -> None:  # noqa: B027
        """Raises UserError for a missing package or model that the metrics need."""

    @abc.abstractmethod
    def open_source(self, spec: str, *, key: str) -> Source:
        """The examples named by `spec`, the value of config key `key`. Raises UserError if there are none."""

    @abc.abstractmethod
    def train_tokenizers(self, source: Source) -> TokenizerPair:
        """Tokenizers of both sides, trained on the training examples."""

    def preprocess_source(self, text: str) -> str:
        """A user's input line in the form of the training sources."""
        return text

    def preprocess_target(self, source: str, text: str) -> str:
        """A user's output line (in the form of `postprocess`) in the form of the training targets.

        Raises UserError for a text that is not a possible output for the source.
        """
        return text

    def postprocess(self, source: str, output: str) -> str:
        """A model output or a training target as the single line that users see."""
        return " ".join(output.splitlines())

    def predictions(
        self, sources: Sequence[str], outputs: Sequence[str], targets: Sequence[Sequence[str]]
    ) -> Predictions:
        """Model outputs and one or more sets of targets, ready to be scored."""
        hypotheses, *references = (
            [self.postprocess(source, text) for source, text in zip(sources, side, strict=True)]
            for side in (outputs, *targets)
        )
        return Predictions(hypotheses, references, sources, outputs)

    @property
    def primary_metric(self) -> Metric:
        """The metric by which systems are compared unless another is named."""
        return self.metrics[0]

    @property
    def comparable_names(self) -> list[str]:
        """The names of the metrics by which two systems can be compared, the primary one first."""
        return [metric.name for metric in self.metrics if metric.statistics]

    def metric(self, name: str) -> Metric:
        """A metric by one of the names of `find_metric`, losses included. Raises UserError for an unknown name."""
        metrics = *self.metrics, *model_metrics()
        if metric := find_metric(metrics, name):
            return metric
        known = ", ".join(metric.name for metric in metrics)
        raise UserError(f"config.data.task = {self.config.data.task} has no metric {name!r}; it has {known}.")

    def training_metrics(self) -> list[str]:
        """The names that eval.metric can have."""
        return [metric.training_name for metric in (*model_metrics(), *self.metrics)]

    def record_metrics(self) -> list[str]:
        """The names of the scores in an evaluation record."""
        return [*(metric.name for metric in self.metrics), *NAMES_IN_RECORDS.values()]

    def validation_metrics(self) -> list[Metric]:
        """The metrics computed when the validation set is decoded: the primary one and eval.metric's."""
        wanted = (self.primary_metric.training_name, self.config.eval.metric)
        return [metric for metric in self.metrics if metric.training_name in wanted]

    def summary(self, scores: dict[str, Any]) -> list[str]:
        """The scores of a record in a few lines: a line per comparable metric, then the others."""
        shown = [metric for metric in self.metrics if metric.name in scores]
        lines = [metric.describe(scores[metric.name]) for metric in shown if metric.statistics]
        last = [f"{m.display_name} {scores[m.name]['score']:.1f}{m.unit}" for m in shown if not m.statistics]
        return [*lines, "  " + "   ".join([*last, f"perplexity {scores['perplexity']:.3f}"])]


def task_of(config: Config) -> Task:
    """The task named by data.task. Raises UserError for an unknown task, or settings it cannot have."""
    task = make_task(config)
    task.validate_config()
    return task


def make_task(config: Config) -> Task:
    """As `task_of`, for a config that need not be complete, such as that of an old record."""
    load_extensions()
    name = config.data.task
    if name not in TASKS:
        close = difflib.get_close_matches(name, TASKS, n=1)
        hint = absent_extension("data.task", name) or (f" Did you mean {close[0]!r}?" if close else "")
        raise UserError(f"unknown task config.data.task = {name!r}: expected one of {', '.join(TASKS)}.{hint}")
    return TASKS.load(name).TASK(config)


def lower_is_better(name: str) -> bool:
    """Whether a lower value of a metric is better, by any of the names of `find_metric`.

    A metric is the same in all tasks, and on each of several sets (`NAME/SET`). Raises UserError for a name that no task has.
    """
    known = model_metrics()
    for task in (None, *TASKS):
        known += TASKS.load(task).TASK.metrics if task else ()
        if metric := find_metric(known, name.partition("/")[0]):
            return not metric.higher_is_better
    raise UserError(f"no task has a metric {name!r}; known: {', '.join(dict.fromkeys(m.name for m in known))}.")
