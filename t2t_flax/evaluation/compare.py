"""Whether one system is better than another: paired bootstrap resampling of two evaluation records (Koehn 2004)."""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from etils import epath

from t2t_flax.config import Data
from t2t_flax.data.task import task_class
from t2t_flax.errors import UserError
from t2t_flax.evaluation.bleu import VARIANTS, Variant, variant

RESAMPLES, SEED = 1000, 12345  # those of sacreBLEU's own command line
HOW = (
    "Paired bootstrap resampling: p_value is that of sacreBLEU (PairedTest, test type bs), where small in effect one-sided, "
    "and 1 where both systems say the same; interval holds the middle 95 % of the differences on the same resamples; "
    "a_better is the share of resamples in which a scores higher."
)
HOW_TWO_SIDED = (
    "Paired bootstrap resampling over sentences: p_value is two-sided, twice the smaller share of resampled differences on "
    "either side of zero; interval holds the middle 95 % of them."
)


def compare(
    record_a: str | os.PathLike,
    record_b: str | os.PathLike,
    *,
    score: str = "",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, Any]:
    """Both systems' `score` (a BLEU of `bleu.VARIANTS`, or f1; default: sacrebleu, in parsing f1), the difference a - b, its
    95 % interval and the p-value.

    Reads the hypotheses and references beside the records; needs no JAX. Raises UserError for a file that is missing,
    changed or no record, and for records of different test sets.
    """
    task, score, texts, references = _prepared(record_a, record_b, score)
    (counts_a, of), (counts_b, _) = (task.counts(score, text, references) for text in texts)
    draws = np.random.default_rng(seed).choice(len(references), size=(resamples, len(references)))  # as PairedTest does
    differences = np.array([of(counts_a[i].sum(0)) - of(counts_b[i].sum(0)) for i in draws])
    score_a, score_b = of(counts_a.sum(0)), of(counts_b.sum(0))
    if score in VARIANTS:
        chosen = variant(score, tokenized=task.data.tokenized, language=task.data.target_language)
        p_value, signature = _paired_test(
            chosen, *map(chosen.prepare, texts), chosen.prepare(references), resamples, seed
        )
        how = f"{HOW} {VARIANTS[score]}: {chosen.how}"
    else:
        p_value, signature, how = two_sided(differences), "", HOW_TWO_SIDED
    low, high = np.percentile(differences, (2.5, 97.5))
    return {
        "score": score,
        "a": {"record": os.fspath(record_a), "score": round(score_a, 4)},
        "b": {"record": os.fspath(record_b), "score": round(score_b, 4)},
        "difference": round(score_a - score_b, 4),
        "interval": {"level": 0.95, "low": round(float(low), 4), "high": round(float(high), 4)},
        "p_value": round(p_value, 6),
        "a_better": round(float((differences > 0).mean()), 4),
        "sentences": len(references),
        "resamples": resamples,
        "seed": seed,
        "signature": signature,
        "how": how,
    }


def paired_statistics(
    record_a: str | os.PathLike, record_b: str | os.PathLike, score: str
) -> tuple[tuple[np.ndarray, np.ndarray], Callable[[np.ndarray], float]]:
    """Both systems' counts, int64 [sentences, n] each, and the function that makes a score of their sum over sentences.

    Raises UserError as `compare` does.
    """
    task, score, texts, references = _prepared(record_a, record_b, score)
    (a, of), (b, _) = (task.counts(score, text, references) for text in texts)
    return (a, b), of


def _prepared(record_a: str | os.PathLike, record_b: str | os.PathLike, score: str):
    """(the task, the score, both systems' answers, references)."""
    a, b = read_record(record_a), read_record(record_b)
    _check_same_test_set(a, b, record_a, record_b)
    (said_a, references), (said_b, other) = (_texts(r, at) for r, at in ((a, record_a), (b, record_b)))
    if references != other:
        raise UserError(
            f"{record_a} and {record_b} name the same test set, but their references differ: evaluate again."
        )
    known = {item.name for item in dataclasses.fields(Data)}
    data = Data(**{key: value for key, value in a["config"]["data"].items() if key in known})
    task = task_class(data.task)(data)
    score = score or next(iter(task.spoken))
    if score not in task.spoken:
        raise UserError(
            f"systems of data.task = {data.task} are compared by {', '.join(task.spoken)}, not by {score!r}."
        )
    return task, score, (said_a, said_b), references


def two_sided(differences: np.ndarray) -> float:
    """Twice the smaller share of resampled differences on either side of zero; never 0, as the test itself is one more."""
    smaller = min((differences <= 0).sum(), (differences >= 0).sum())
    return min(1.0, 2 * (int(smaller) + 1) / (len(differences) + 1))


def describe(comparison: dict[str, Any]) -> str:
    """A comparison in a few lines for people."""
    c = comparison
    low, high = c["interval"]["low"], c["interval"]["high"]
    return "\n".join(
        [
            f"{VARIANTS.get(c['score'], c['score'])} of two systems on the same {c['sentences']} sentences:",
            *(f"  {name} {c[name]['score']:6.2f}   {c[name]['record']}" for name in "ab"),
            f"  a - b {c['difference']:+.2f}, 95 % interval [{low:+.2f}, {high:+.2f}], p = {c['p_value']:.3g} "
            f"(paired bootstrap, {c['resamples']} resamples)",
        ]
    )


def read_record(path: str | os.PathLike) -> dict[str, Any]:
    """The evaluation record in a file. Raises UserError where there is none."""
    hint = "Give the file WORKDIR/eval/<split>-<step>.json that `evaluate` wrote."
    file = epath.Path(path)
    if not file.exists() or file.is_dir():
        raise UserError(f"there is no record {path}. {hint}" if not file.exists() else f"{path} is a folder. {hint}")
    try:
        record = json.loads(file.read_bytes())
    except ValueError:
        raise UserError(f"{path} is not an evaluation record: it is not JSON. {hint}") from None
    needed = {"record_version", "data", "hypotheses", "config", "digests"}
    if not isinstance(record, dict) or not needed <= set(record):
        raise UserError(
            f"{path} is not an evaluation record: it lacks {', '.join(sorted(needed - set(record)))}. {hint}"
        )
    if "references" not in record:
        raise UserError(f"{path} was written by a version that kept no references: run `evaluate` again.")
    return record


def _check_same_test_set(a: dict, b: dict, at_a: Any, at_b: Any) -> None:
    def name(record: dict) -> str:
        data = record["data"]
        spec = f"{data['corpus']}, {data['spec']}" if data.get("corpus") else data["spec"]
        return f"{spec} ({data['sentences']} sentences, digest {data['digest'][:12]})"

    if any(a["data"][key] != b["data"][key] for key in ("digest", "sentences")):
        raise UserError(
            f"the records are of different test sets: {at_a} of {name(a)}, {at_b} of {name(b)}. "
            "A paired test needs two systems on the same sentences."
        )
    for key in ("tokenized", "target_language"):
        one, other = (record["config"]["data"][key] for record in (a, b))
        if one != other:
            raise UserError(
                f"config.data.{key} is {one} in {at_a} and {other} in {at_b}: their texts cannot be compared."
            )


def _texts(record: dict[str, Any], at: str | os.PathLike) -> tuple[list[str], list[str]]:
    """Hypotheses and references that lie beside a record, as it describes them."""
    found = []
    for kind in ("hypotheses", "references"):
        file = epath.Path(at).parent / record[kind]
        if not file.exists():
            raise UserError(f"the {kind} of {at} are not there: {file}. They must lie beside the record.")
        data = file.read_bytes()
        lines = data.decode("utf-8").split("\n")[:-1]
        if hashlib.sha256(data).hexdigest() != record["digests"][kind]:
            raise UserError(f"{file} is not what {at} describes ({len(lines)} lines, another digest): evaluate again.")
        found.append(lines)
    return found[0], found[1]


def _paired_test(
    chosen: Variant, a: list[str], b: list[str], references: list[str], resamples: int, seed: int
) -> tuple[float, str]:
    """sacreBLEU's p-value with b as baseline, and its signature."""
    from sacrebleu.significance import PairedTest

    with _sacrebleu_seed(seed):
        test = PairedTest([("b", b), ("a", a)], {"BLEU": chosen.metric()}, [references], "bs", resamples)
        signatures, results = test()
    p_value = 1.0 if a == b else float(results["BLEU"][1].p_value)
    return p_value, str(signatures["BLEU"])


@contextlib.contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment only."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        os.environ.pop("SACREBLEU_SEED")
        if before is not None:
            os.environ["SACREBLEU_SEED"] = before
