"""Comparison of systems, sentence by sentence.

It reads evaluation records with their texts. Does not import JAX.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from etils import epath

from t2t_flax.config import Config, Data, Eval
from t2t_flax.config.data_keys import DEFAULT_LANGUAGES
from t2t_flax.errors import UserError
from t2t_flax.json_file import parse_json
from t2t_flax.registry import GROUPS, load_extensions
from t2t_flax.tasks import (
    SEED,
    Predictions,
    SentenceStatistics,
    Task,
    draw_sentences,
    extension_metrics,
    resampled_scores,
    task_of,
)
from t2t_flax.tasks.translation import tokenizer_of

LEVEL = 0.05
"""Significance level of all tests."""
RESAMPLES = 1000
"""Default of sacreBLEU's command line."""
_HINT = "Give the file WORKDIR/eval/<split>-<step>.json written by `evaluate`."
_LACKS = "{path} has no {score}: evaluate again with --metric={score}."
COLUMNS = ("system", "checkpoint", "score", "difference", "p", "sentences")


def read_record(path: str | os.PathLike) -> dict[str, Any]:
    """Read the evaluation record in a file. Raises UserError for another file."""
    file = epath.Path(path)
    if not file.exists() or file.is_dir():
        raise UserError(
            f"there is no record {path}. {_HINT}"
            if not file.exists()
            else f"{path} is a folder. {_HINT}"
        )
    try:
        record = parse_json(file.read_bytes())
    except ValueError:
        raise UserError(f"{path} is not an evaluation record: it is not JSON. {_HINT}") from None
    required = {"record_version", "data", "hypotheses", "references", "config", "digests"}
    if not isinstance(record, dict) or not required <= set(record):
        missing = ", ".join(sorted(required - set(record)))
        raise UserError(f"{path} is not an evaluation record: it lacks {missing}. {_HINT}")
    if not isinstance(record["config"], dict):
        raise UserError(f"{path} is not an evaluation record: its config is not a config. {_HINT}")
    return record


def texts(record: dict[str, Any], path: str | os.PathLike) -> tuple[list[str], list[list[str]]]:
    """Return (hypotheses, sets of references) stored beside a record.

    Raises UserError if missing or changed.
    """
    (hypotheses,) = _read_lines("hypotheses", record, path)
    return hypotheses, _read_lines("references", record, path)


def _read_lines(kind: str, record: dict[str, Any], path: str | os.PathLike) -> list[list[str]]:
    """Return the lines of each file of a kind ("hypotheses" or "references")."""
    names, digests = (
        x if isinstance(x, list) else [x] for x in (record[kind], record["digests"][kind])
    )
    sets = []
    for name, digest in zip(names, digests, strict=True):
        if os.path.basename(name) != name:
            raise UserError(
                f"{path} names {name} as its {kind}, but they must be in the record's folder."
            )
        file = epath.Path(path).parent / name
        if not file.exists():
            raise UserError(
                f"the {kind} of {path} are missing: {file}. They must be in the record's folder."
            )
        data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            count = data.count(b"\n")
            raise UserError(
                f"{file} does not match {path} ({count} lines, another digest): run `evaluate`"
                " again."
            )
        sets.append(data.decode("utf-8").split("\n")[:-1])
    return sets


def comparable_names(task: Task) -> list[str]:
    """Return the metrics that can compare two systems, the primary one first."""
    metrics = [metric for metric in task.metrics if metric.statistics]
    return [metric.name for metric in metrics if metric.of_entry or not metric.reads_sources]


def task_of_record(record: dict[str, Any]) -> Task:
    """Return the task of a record with its settings.

    Raises UserError for a task that this version does not have.
    """
    data = _known_keys(Data, record["config"]["data"])
    config = Config(data=data, eval=Eval(sacrebleu_tokenizer=tokenizer_of_record(record)))
    load_extensions()
    groups = {
        name: _known_keys(GROUPS[name], record["config"][name])
        for name in GROUPS
        if name in record["config"]
    }
    return task_of(config.with_extensions(groups))


def _known_keys(group: type, values: dict[str, Any]) -> Any:
    """Return the group with the values of its known keys."""
    names = {item.name for item in dataclasses.fields(group)}
    return group(
        **{
            name: tuple(v) if isinstance(v, list) else v
            for name, v in values.items()
            if name in names
        }
    )


def tokenizer_of_record(record: dict[str, Any]) -> str:
    """Return sacreBLEU's tokenizer in a record."""
    setting = record["config"].get("eval", {}).get("sacrebleu_tokenizer", "13a")
    return tokenizer_of(
        setting, record["config"]["data"].get("target_language", DEFAULT_LANGUAGES[1])
    )


def check_comparable(a: dict, b: dict, path_a: Any, path_b: Any, score: str = "") -> str:
    """Return the metric that compares two records: `score`, or the primary one.

    Raises UserError for different tasks, test sets or kinds of text, and for a metric that cannot
    compare the task's systems.
    """

    def describe_data(record: dict) -> str:
        data = record["data"]
        spec = f"{data['corpus']}, {data['spec']}" if data.get("corpus") else data["spec"]
        return f"{spec} ({data['sentences']} sentences, digest {data['digest'][:12]})"

    if a["data"]["digest"] != b["data"]["digest"]:
        raise UserError(
            f"the records are of different test sets: {path_a} of {describe_data(a)}, {path_b} of"
            f" {describe_data(b)}. A paired test needs two systems on the same sentences."
        )
    for key, default in (
        ("task", "translation"),
        ("pretokenized", None),
        ("target_language", None),
    ):
        value_a, value_b = (record["config"]["data"].get(key, default) for record in (a, b))
        if value_a != value_b:
            raise UserError(
                f"config.data.{key} is {value_a} in {path_a} and {value_b} in {path_b}: they cannot"
                " be compared."
            )
    task = task_of_record(a)
    names = comparable_names(task)
    score = score or names[0]
    if score not in names:
        if any(metric.name == score and metric.of_entry for metric in extension_metrics()):
            raise UserError(_LACKS.format(path=path_a, score=score))
        name = task.config.data.task
        raise UserError(
            f"systems of data.task = {name} are compared by {', '.join(names)}, not by {score!r}."
        )
    tokenizer_a, tokenizer_b = (tokenizer_of_record(record) for record in (a, b))
    if score == "sacrebleu" and tokenizer_a != tokenizer_b:
        raise UserError(
            f"the sacreBLEU of {path_a} has tokenizer {tokenizer_a}, that of {path_b}"
            f" {tokenizer_b}: evaluate one again with"
            f" --config.eval.sacrebleu_tokenizer={tokenizer_a}."
        )
    return score


def systems(
    paths: Sequence[str | os.PathLike], score: str = ""
) -> tuple[Task, str, list[SentenceStatistics]]:
    """Return the task, the metric and its sentence statistics for each record.

    All are on the same sentences. The default metric is the primary one. Raises UserError for a
    file that is missing, changed or not a record, and for records of different test sets or
    references.
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
                f"{paths[0]} and {path} name the same test set, but their references differ:"
                " evaluate again."
            )
        if of_entry := task.metric(score).of_entry:
            statistics.append(_stored_statistics(score, of_entry, record, path, len(hypotheses)))
        else:
            statistics.append(_statistics(task.config, score, shared, tuple(hypotheses)))
    signatures = {each.signature() for each in statistics}
    if task.metric(score).of_entry and len(signatures) > 1:
        raise UserError(
            f"the records have {score} of different models or settings:"
            f" {' and '.join(sorted(signatures))}."
        )
    return task, score, statistics


def _stored_statistics(
    score: str, of_entry: Callable, record: dict[str, Any], path: Any, sentences: int
) -> SentenceStatistics:
    """Return the stored statistics of a metric that is too costly to compute again.

    Raises UserError for a record that does not have it for all sentences.
    """
    if score not in record.get("scores", {}):
        raise UserError(_LACKS.format(path=path, score=score))
    statistics = of_entry(record["scores"][score])
    if len(statistics.values) != sentences:
        raise UserError(
            f"{path} has {score} of {len(statistics.values)} of {sentences} sentences: evaluate"
            " again."
        )
    return statistics


@functools.lru_cache(maxsize=64)  # a table compares one system with many; some metrics take seconds
def _statistics(
    config: Config, score: str, references: tuple[tuple[str, ...], ...], hypotheses: tuple[str, ...]
) -> SentenceStatistics:
    statistics = task_of(config).metric(score).statistics
    assert statistics is not None, f"{score} is none of `comparable_names`"
    return statistics(Predictions(hypotheses, references), config)


def compare(
    path_a: str | os.PathLike,
    path_b: str | os.PathLike,
    *,
    score: str = "",
    resamples: int = RESAMPLES,
    seed: int = SEED,
    tests: int = 1,
) -> dict[str, Any]:
    """Compare two systems by paired bootstrap resampling over sentences (Koehn 2004).

    `interval` is the central 95 % of the resampled differences a - b; it excludes zero exactly
    where the two-sided `p_value` < 0.05; both are corrected for the number of `tests`. Raises
    UserError as `systems`.

    Args:
        score: default the primary metric.
    """
    task, score, (a, b) = systems([path_a, path_b], score)
    metric, difference = task.metric(score), a.corpus_score - b.corpus_score
    differences = paired_bootstrap(a, b, resamples, seed)
    low, high = interval(differences, tests)
    return {
        "score": score,
        "lower_is_better": not metric.higher_is_better,
        "a": {"record": os.fspath(path_a), "score": round(a.corpus_score, 4)},
        "b": {"record": os.fspath(path_b), "score": round(b.corpus_score, 4)},
        "difference": round(difference, 4),
        "interval": {"level": 0.95, "low": round(low, 4), "high": round(high, 4)},
        "p_value": round(two_sided_p(differences, tests), 6),
        "sentences": len(a.values),
        "resamples": resamples,
        "seed": seed,
        "signature": a.signature(bs=resamples, seed=seed),
        "method": a.method,
    }


def compare_all(
    paths: Sequence[str | os.PathLike], names: Sequence[str], score: str = ""
) -> tuple[list[list[str]], list[str]]:
    """Return a row of `COLUMNS` for each record, and notes on their meaning.

    A row has the difference to the first one. Differences are tested by paired bootstrap; with
    several, intervals and p-values are corrected for their number (Bonferroni). Raises UserError as
    `systems`.
    """
    task, score, statistics = systems(paths, score)
    metric, tests = task.metric(score), len(paths) - 1
    differences = [None, *(compare(path, paths[0], score=score, tests=tests) for path in paths[1:])]
    note = f"paired bootstrap, {RESAMPLES} resamples: 95 % interval, two-sided p"
    note += f", both corrected for {tests} differences" if tests > 1 else ""
    table = []
    for path, name, of_sentences, found in zip(paths, names, statistics, differences, strict=True):
        cells = ["", ""]
        if found:
            low, high = found["interval"]["low"], found["interval"]["high"]
            cells = [
                f"{found['difference']:+.2f} [{low:+.2f}, {high:+.2f}]",
                f"{found['p_value']:.3g}",
            ]
        checkpoint = _checkpoint(read_record(path))
        table.append(
            [
                name,
                checkpoint,
                f"{of_sentences.corpus_score:.2f}",
                *cells,
                str(len(of_sentences.values)),
            ]
        )
    lower = "" if metric.higher_is_better else ", lower is better"
    return table, [
        f"{metric.display_name}{lower}. Difference to {names[0]}, {note}.",
        f"{statistics[0].method.rstrip('.')}.",
    ]


def _checkpoint(record: dict[str, Any]) -> str:
    checkpoint = record.get("checkpoint") or {"averaged": []}
    steps = checkpoint["averaged"]
    if len(steps) > 1:
        return f"mean of {len(steps)} up to {steps[0]}"
    return f"{steps[0]}{' (best)' if 'best' in checkpoint else ''}" if steps else ""


def paired_bootstrap(
    a: SentenceStatistics, b: SentenceStatistics, resamples: int = RESAMPLES, seed: int = SEED
) -> np.ndarray:
    """Return score differences on the same resampled sentences, float64 [resamples].

    A difference is the score of a minus the score of b.
    """
    counts = draw_sentences(len(a.values), resamples, seed)
    return resampled_scores(a, counts) - resampled_scores(b, counts)


def two_sided_p(differences: np.ndarray, tests: int = 1) -> float:
    """Return the two-sided bootstrap p-value.

    It is twice the smaller share of resampled differences on either side of zero, times the number
    of tests. Never 0: the observed data count as one more resample.
    """
    smaller = min((differences <= 0).sum(), (differences >= 0).sum())
    return min(1.0, _tail_p(int(smaller), len(differences), tests))


def interval(differences: np.ndarray, tests: int = 1) -> tuple[float, float]:
    """Return the central range of resampled differences.

    It excludes zero exactly where `two_sided_p` is below LEVEL. With too few resamples to reach
    that level it is their full range, extended to zero.
    """
    ordered = np.sort(differences)
    outside = int((_tail_p(np.arange(len(ordered)), len(ordered), tests) < LEVEL).sum())
    if not outside:
        return float(min(ordered[0], 0.0)), float(max(ordered[-1], 0.0))
    return float(ordered[outside - 1]), float(ordered[-outside])


def _tail_p(count, resamples: int, tests: int):
    return 2 * (count + 1) / (resamples + 1) * tests
