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

from t2t_flax import config as config_lib
from t2t_flax.config import Config, Data
from t2t_flax.data.corpus import split_source
from t2t_flax.data.task import Task, task_class
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
    task, score, said, references = _prepared(record_a, record_b, score)
    (counts_a, of), (counts_b, _) = (task.counts(score, text, references) for text in said)
    draws = np.random.default_rng(seed).choice(len(references), size=(resamples, len(references)))  # as PairedTest does
    differences = np.array([of(counts_a[i].sum(0)) - of(counts_b[i].sum(0)) for i in draws])
    score_a, score_b = of(counts_a.sum(0)), of(counts_b.sum(0))
    if score in VARIANTS:
        chosen = variant(score, tokenized=task.data.tokenized, language=task.data.target_language)
        p_value, signature = _paired_test(
            chosen, *map(chosen.prepare, said), chosen.prepare(references), resamples, seed
        )
        how = f"{HOW} {VARIANTS[score]}: {chosen.how}"
    else:
        p_value, signature, how = two_sided(differences), "", HOW_TWO_SIDED
    low, high = np.percentile(differences, (2.5, 97.5))
    return {
        "score": score,
        "spoken": task.spoken[score],
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
    task, score, said, references = _prepared(record_a, record_b, score)
    (a, of), (b, _) = (task.counts(score, text, references) for text in said)
    return (a, b), of


def _prepared(record_a: str | os.PathLike, record_b: str | os.PathLike, score: str):
    """(the task, the score, both systems' answers, references)."""
    a, b = read_record(record_a), read_record(record_b)
    score = check_comparable(a, b, record_a, record_b, score)
    (said_a, references), (said_b, other) = (texts(r, at) for r, at in ((a, record_a), (b, record_b)))
    if references != other:
        raise UserError(
            f"{record_a} and {record_b} name the same test set, but their references differ: evaluate again."
        )
    known = {item.name for item in dataclasses.fields(Data)}
    data = Data(**{key: value for key, value in a["config"]["data"].items() if key in known})
    task = task_class(data.task)(data)
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
            f"{c['spoken']} of two systems on the same {c['sentences']} sentences:",
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


def planned(config: Config, split: str) -> dict[str, Any]:
    """What a record of this evaluation will say of its data and its config. Raises UserError where the text is not there."""
    source = split_source(config, split)
    data = {"corpus": config.data.corpus, "spec": source.spec, "digest": source.fingerprint()}
    return {"data": data, "config": config_lib.as_json(config)}


def task_of_record(record: dict[str, Any]) -> type[Task]:
    """The task of an evaluation record; the oldest do not name one."""
    return task_class(record["config"]["data"].get("task", "translation"))


def check_comparable(a: dict, b: dict, at_a: Any, at_b: Any, score: str = "") -> str:
    """The score by which two records, or `planned` ones, are compared: `score`, or their task's own.

    Raises UserError for another task, test set or kind of text, and for a score that their task does not have.
    """

    def name(record: dict) -> str:
        data = record["data"]
        spec = f"{data['corpus']}, {data['spec']}" if data.get("corpus") else data["spec"]
        sentences = f"{data['sentences']} sentences, " if "sentences" in data else ""
        return f"{spec} ({sentences}digest {data['digest'][:12]})"

    if a["data"]["digest"] != b["data"]["digest"]:
        raise UserError(
            f"the records are of different test sets: {at_a} of {name(a)}, {at_b} of {name(b)}. "
            "A paired test needs two systems on the same sentences."
        )
    for key, default in (("task", "translation"), ("tokenized", None), ("target_language", None)):
        one, other = (record["config"]["data"].get(key, default) for record in (a, b))
        if one != other:
            raise UserError(f"config.data.{key} is {one} in {at_a} and {other} in {at_b}: they cannot be compared.")
    spoken = task_of_record(a).spoken
    score = score or next(iter(spoken))
    if score not in spoken:
        task = a["config"]["data"].get("task", "translation")
        raise UserError(f"systems of data.task = {task} are compared by {', '.join(spoken)}, not by {score!r}.")
    return score


def texts(record: dict[str, Any], at: str | os.PathLike) -> tuple[list[str], list[str]]:
    """Hypotheses and references that lie beside a record. Raises UserError where they are not as it describes them."""
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
