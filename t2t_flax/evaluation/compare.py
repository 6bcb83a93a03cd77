"""Comparing systems by their evaluation records: two systems, many runs, or recipes with several seeds."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.evaluation.records import (
    planned_record,
    read_record,
    task_of_record,
    texts,
    tokenizer_of_record,
)
from t2t_flax.evaluation.row_differences import Difference, compare_rows
from t2t_flax.evaluation.significance import (
    RESAMPLES,
    SEED,
    influence,
    interval,
    paired_bootstrap,
    sacrebleu_p,
    two_sided_p,
)
from t2t_flax.tasks import Task, make_task
from t2t_flax.tasks.metrics import Metric, Predictions, SentenceStatistics

METHOD = (
    "Paired bootstrap resampling over sentences: p_value is two-sided, twice the smaller share of resampled differences on "
    "either side of zero; interval is the central 95 % of them and excludes zero exactly where p_value < 0.05; a_better is "
    "the share of resamples in which a is better."
)
METHOD_SACREBLEU = (
    "p_value_sacrebleu is the value that sacreBLEU (PairedTest, test type bs) prints for the same resamples; small values are "
    "effectively one-sided."
)
COLUMNS = ("run", "checkpoint", "score", "difference", "p (whole table)", "sentences")


def check_comparable(a: dict, b: dict, path_a: Any, path_b: Any, score: str = "") -> str:
    """The metric by which two records, or planned ones, are compared: `score`, or the primary one.

    Raises UserError for different tasks, test sets or kinds of text, and for a metric by which the
    task's systems cannot be compared.
    """

    def describe_data(record: dict) -> str:
        data = record["data"]
        spec = f"{data['corpus']}, {data['spec']}" if data.get("corpus") else data["spec"]
        sentences = f"{data['sentences']} sentences, " if "sentences" in data else ""
        return f"{spec} ({sentences}digest {data['digest'][:12]})"

    if a["data"]["digest"] != b["data"]["digest"]:
        raise UserError(
            f"the records are of different test sets: {path_a} of {describe_data(a)}, {path_b} of {describe_data(b)}. "
            "A paired test needs two systems on the same sentences."
        )
    for key, default in (("task", "translation"), ("pretokenized", None), ("target_language", None)):
        value_a, value_b = (record["config"]["data"].get(key, default) for record in (a, b))
        if value_a != value_b:
            raise UserError(
                f"config.data.{key} is {value_a} in {path_a} and {value_b} in {path_b}: they cannot be compared."
            )
    task = task_of_record(a)
    names = task.comparable_names
    score = score or names[0]
    if score not in names:
        name = task.config.data.task
        raise UserError(f"systems of data.task = {name} are compared by {', '.join(names)}, not by {score!r}.")
    tokenizer_a, tokenizer_b = (tokenizer_of_record(record) for record in (a, b))
    if score == "sacrebleu" and tokenizer_a != tokenizer_b:
        raise UserError(
            f"the sacreBLEU of {path_a} has tokenizer {tokenizer_a}, that of {path_b} {tokenizer_b}: evaluate one again "
            f"with --config.eval.sacrebleu_tokenizer={tokenizer_a}."
        )
    return score


@dataclasses.dataclass(frozen=True)
class PairedSystems:
    """Two systems on the same sentences, with the sentence statistics of one metric."""

    task: Task
    metric: Metric
    a: SentenceStatistics
    b: SentenceStatistics

    @property
    def scores(self) -> tuple[float, float]:
        return self.a.corpus_score, self.b.corpus_score

    @property
    def difference(self) -> float:
        """a - b on the whole test set."""
        return self.scores[0] - self.scores[1]


def paired_systems(path_a: str | os.PathLike, path_b: str | os.PathLike, score: str = "") -> PairedSystems:
    """Two records as a pair. Raises UserError as `compare` does."""
    task, score, (a, b) = systems([path_a, path_b], score)
    return PairedSystems(task, task.metric(score), a, b)


def systems(paths: Sequence[str | os.PathLike], score: str = "") -> tuple[Task, str, list[SentenceStatistics]]:
    """The task, the metric (default: the primary one) and its sentence statistics for each record, on the same sentences.

    Raises UserError for a file that is missing, changed or not a record, and for records of different test sets or references.
    """
    records = [read_record(path) for path in paths]
    for path, record in zip(paths, records, strict=True):
        score = check_comparable(records[0], record, paths[0], path, score)
    task, shared, statistics = task_of_record(records[0]), None, []
    for path, record in zip(paths, records, strict=True):
        hypotheses, references = texts(record, path)
        shared = shared or tuple(map(tuple, references))
        if tuple(map(tuple, references)) != shared:
            raise UserError(
                f"{paths[0]} and {path} name the same test set, but their references differ: evaluate again."
            )
        statistics.append(_statistics(task.config, score, shared, tuple(hypotheses)))
    return task, score, statistics


@functools.lru_cache(maxsize=64)  # a table compares one system with many; some metrics take seconds
def _statistics(
    config: Config, score: str, references: tuple[tuple[str, ...], ...], hypotheses: tuple[str, ...]
) -> SentenceStatistics:
    return make_task(config).metric(score).statistics(Predictions(hypotheses, references), config)


def compare(
    path_a: str | os.PathLike,
    path_b: str | os.PathLike,
    *,
    score: str = "",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, Any]:
    """Both systems' `score` (default: the primary metric), the difference a - b, its 95 % interval and
    two-sided p-value, and sacreBLEU's own p-value for a sacreBLEU metric.

    Reads the hypotheses and references beside the records; does not import JAX. Raises UserError for a file
    that is missing, changed or not a record, and for records of different test sets or references.
    """
    pair = paired_systems(path_a, path_b, score)
    differences, metric = paired_bootstrap(pair.a, pair.b, resamples, seed), pair.metric
    low, high = interval(differences)
    a_better = differences > 0 if metric.higher_is_better else differences < 0
    signature = pair.a.signature(bs=resamples, seed=seed)
    p_values = {"p_value": round(two_sided_p(differences), 6)}
    if signature:
        p_values["p_value_sacrebleu"] = round(sacrebleu_p(differences, pair.difference), 6)
    method = [METHOD, METHOD_SACREBLEU if signature else "", f"{metric.display_name}: {pair.a.method}"]
    return {
        "score": metric.name,
        "spoken": metric.display_name,
        "lower_is_better": not metric.higher_is_better,
        "a": {"record": os.fspath(path_a), "score": round(pair.scores[0], 4)},
        "b": {"record": os.fspath(path_b), "score": round(pair.scores[1], 4)},
        "difference": round(pair.difference, 4),
        "interval": {"level": 0.95, "low": round(low, 4), "high": round(high, 4)},
        **p_values,
        "a_better": round(float(a_better.mean()), 4),
        "sentences": len(pair.a.values),
        "resamples": resamples,
        "seed": seed,
        "signature": signature,
        "how": " ".join(filter(None, method)),
    }


def describe(comparison: dict[str, Any]) -> str:
    """A comparison in a few lines of text."""
    c = comparison
    low, high, lower = c["interval"]["low"], c["interval"]["high"], c.get("lower_is_better", False)
    return "\n".join(
        [
            f"{c['spoken']} of two systems on the same {c['sentences']} sentences{', lower is better' * lower}:",
            *(f"  {name} {c[name]['score']:6.2f}   {c[name]['record']}" for name in "ab"),
            f"  a - b {c['difference']:+.2f}, 95 % interval [{low:+.2f}, {high:+.2f}], two-sided p = {c['p_value']:.3g} "
            f"(paired bootstrap, {c['resamples']} resamples)",
        ]
    )


def check_runs(configs: Sequence[tuple[str, Config]], split: str, score: str) -> None:
    """Raises UserError if the runs (workdir, config) have different tasks or test sets, or for an unknown score."""
    (first, config), *_ = configs
    planned = planned_record(config, split)
    for workdir, config in configs:
        check_comparable(planned_record(config, split), planned, workdir, first, score)


def compare_runs(paths: Sequence[os.PathLike | None], names: Sequence[str], score: str) -> list[list[str]]:
    """A row of `COLUMNS` for each record: its score, and its paired difference to the first record with 95 % interval and
    two-sided p-value, both corrected for the number of records (`row_differences`).

    A path is None if a run has no record; without the first record there are no differences.
    Raises UserError for records of different test sets or tasks.
    """
    evaluated = list(dict.fromkeys(path for path in paths if path is not None))
    differences: dict[os.PathLike | None, Difference | None] = {}
    if paths[0] is not None and len(evaluated) > 1:
        _, _, statistics = systems(evaluated, score)
        scores = np.array([[each.corpus_score] for each in statistics])
        influences = np.array([[influence(each)] for each in statistics])
        differences = dict(zip(evaluated, compare_rows(scores, influences, reference=0).rows, strict=True))
    rows = []
    for path, name in zip(paths, names, strict=True):
        if path is None:
            rows.append([name, "", "not evaluated", "", "", ""])
            continue
        record = read_record(path)
        chosen = score or task_of_record(record).primary_metric.name
        difference = p_value = ""
        if found := differences.get(path):
            low, high = found.low_corrected, found.high_corrected
            difference = f"{found.difference:+.2f} [{low:+.2f}, {high:+.2f}]"
            p_value = f"{found.p_corrected:.3g}"
        value = f"{record['scores'][chosen]['score']:.2f}"
        rows.append([name, _checkpoint(record), value, difference, p_value, str(record["data"]["sentences"])])
    return rows


def _checkpoint(record: dict[str, Any]) -> str:
    steps = record["checkpoint"]["averaged"]
    if "best" in record["checkpoint"]:
        return f"{steps[0]} (best)"
    return str(steps[0]) if len(steps) == 1 else f"mean of {len(steps)} up to {steps[0]}"
