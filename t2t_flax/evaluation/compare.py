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
from t2t_flax.evaluation.significance import (
    RESAMPLES,
    SEED,
    add_seed_variance,
    interval,
    multipliers,
    paired_bootstrap,
    resamples_for,
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
METHOD_SEEDS = (
    "The difference is the mean over pairs of runs with the same seed. Its distribution is that of a paired bootstrap over "
    "sentences plus Student's t times the standard error over seeds (Behrens and Fisher), which is estimated from all rows of "
    "the table together (rows and seeds without interaction); p_value is two-sided, and interval (95 %) excludes zero "
    "exactly where p_value < 0.05."
)
METHOD_ONE_SEED = (
    "Paired bootstrap resampling over sentences: two-sided p_value and interval (95 %). Neither includes the variation "
    "between seeds, as no row has two seeds."
)
METHOD_SEEDS_ALONE = (
    "The difference is the mean over pairs of runs with the same seed. Interval (95 %) and two-sided p_value are Student's t "
    "for the spread over seeds, estimated from all rows of the table together (rows and seeds without interaction); neither "
    "includes the variation between test sentences."
)
COLUMNS = ("run", "checkpoint", "score", "difference", "two-sided p (Holm)", "sentences")


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
    a, b = read_record(path_a), read_record(path_b)
    score = check_comparable(a, b, path_a, path_b, score)
    (hypotheses_a, references), (hypotheses_b, references_b) = (
        texts(r, path) for r, path in ((a, path_a), (b, path_b))
    )
    if references != references_b:
        raise UserError(f"{path_a} and {path_b} name the same test set, but their references differ: evaluate again.")
    task = task_of_record(a)
    shared = tuple(map(tuple, references))
    statistics = (_statistics(task.config, score, shared, tuple(lines)) for lines in (hypotheses_a, hypotheses_b))
    return PairedSystems(task, task.metric(score), *statistics)


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
    """A row of `COLUMNS` for each record: its score, and its paired difference to the first record with
    95 % interval and two-sided p-value, both corrected for the number of records (Holm).

    A path is None if a run has no record; without the first record there are no differences.
    Raises UserError for records of different test sets or tasks.
    """
    compared = [path for path in paths if path is not None and path != paths[0]] if paths[0] is not None else []
    pairs = {path: paired_systems(path, paths[0], score) for path in compared}
    resamples = resamples_for(len(compared))
    differences = {path: paired_bootstrap(pair.a, pair.b, resamples) for path, pair in pairs.items()}
    p_values = {path: two_sided_p(draws) for path, draws in differences.items()}
    factors = dict(zip(p_values, multipliers(list(p_values.values()), holm=True), strict=True))
    rows = []
    for path, name in zip(paths, names, strict=True):
        if path is None:
            rows.append([name, "", "not evaluated", "", "", ""])
            continue
        record = read_record(path)
        chosen = score or task_of_record(record).primary_metric.name
        difference = p_value = ""
        if path in pairs:
            low, high = interval(differences[path], factors[path])
            difference = f"{pairs[path].difference:+.2f} [{low:+.2f}, {high:+.2f}]"
            p_value = f"{min(1.0, p_values[path] * factors[path]):.3g}"
        value = f"{record['scores'][chosen]['score']:.2f}"
        rows.append([name, _checkpoint(record), value, difference, p_value, str(record["data"]["sentences"])])
    return rows


def _checkpoint(record: dict[str, Any]) -> str:
    steps = record["checkpoint"]["averaged"]
    if "best" in record["checkpoint"]:
        return f"{steps[0]} (best)"
    return str(steps[0]) if len(steps) == 1 else f"mean of {len(steps)} up to {steps[0]}"


@dataclasses.dataclass(frozen=True)
class SeedPairs:
    """Runs of two recipes on the same sentences, paired by seed.

    scores: [pairs, 2]. differences: [resamples] of the mean difference on resampled sentences; empty for
    a metric without sentence statistics. sentences, seed: of the bootstrap.
    """

    score: str
    scores: np.ndarray
    differences: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    sentences: int = 0
    seed: int = SEED


def pair_seeds(
    pairs: Sequence[tuple[str | os.PathLike, str | os.PathLike]],
    *,
    score: str = "",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> SeedPairs:
    """`score` of pairs of evaluation records, resampled over the same sentences in every record.

    Raises UserError for a record that is missing, changed, or of another test set than the others.
    """
    first = read_record(pairs[0][0])
    for a, _ in pairs:  # `paired_systems` compares the two of each pair
        score = check_comparable(first, read_record(a), pairs[0][0], a, score)
    systems = [paired_systems(a, b, score) for a, b in pairs]
    differences = np.mean([paired_bootstrap(pair.a, pair.b, resamples, seed) for pair in systems], axis=0)
    scores = np.array([pair.scores for pair in systems])
    return SeedPairs(score, scores, differences, len(systems[0].a.values), seed)


def compare_seeds(pairs: SeedPairs, spread: tuple[float, int], comparisons: float | None = None) -> dict[str, Any]:
    """The mean difference a - b over the pairs, its 95 % interval and two-sided p-value.

    spread: (variance, degrees of freedom) from `significance.seed_variance`; without degrees of freedom
    the uncertainty is over sentences alone. comparisons: in a table, this row's factor from `significance.multipliers`;
    adds `p_corrected` and `interval_corrected`, which are consistent like `p_value` and `interval`.
    """
    (a, b), (variance, freedom) = pairs.scores.mean(axis=0).tolist(), spread
    bootstrap = len(pairs.differences) > 0
    sampled = pairs.differences if bootstrap else np.array([a - b])
    differences = add_seed_variance(sampled, 2 * variance / len(pairs.scores), freedom)
    low, high = interval(differences)
    p_value = two_sided_p(differences)
    result = {
        "score": pairs.score,
        "a": round(a, 4),
        "b": round(b, 4),
        "difference": round(a - b, 4),
        "interval": {"level": 0.95, "low": round(low, 4), "high": round(high, 4)},
        "p_value": float(f"{p_value:.4g}"),
        "pairs": pairs.scores.round(4).tolist(),
    }
    if comparisons is not None:
        low, high = interval(differences, comparisons)
        result["p_corrected"] = float(f"{min(1.0, p_value * comparisons):.4g}")
        result["interval_corrected"] = {"level": 0.95, "comparisons": round(comparisons, 4)} | {
            "low": round(low, 4),
            "high": round(high, 4),
        }
    if bootstrap:
        result["sentence_spread"] = round(float(pairs.differences.std(ddof=1)), 4)
        result |= {"sentences": pairs.sentences, "resamples": len(pairs.differences), "seed": pairs.seed}
    if freedom:
        result |= {"seed_spread": round(variance**0.5, 4), "freedom": freedom}
    if not freedom:
        return result | {"how": METHOD_ONE_SEED}
    return result | {"how": METHOD_SEEDS if bootstrap else METHOD_SEEDS_ALONE}
