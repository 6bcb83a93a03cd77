"""Whether one system is better than another: paired bootstrap resampling of two evaluation records (Koehn 2004)."""

import dataclasses
import functools
import hashlib
import json
import os
from typing import Any

import numpy as np
from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config, Data, Eval
from t2t_flax.config.renamed import upgraded
from t2t_flax.data.dataset import split_source
from t2t_flax.data.task import Counts, Task, task_class
from t2t_flax.errors import UserError
from t2t_flax.evaluation.bleu import BOOTSTRAP_SEED, draw_sentences
from t2t_flax.evaluation.metrics import lower_is_better
from t2t_flax.evaluation.significance import interval, sacrebleu_p, two_sided
from t2t_flax.evaluation.target_language import tokenizer_of

RESAMPLES, SEED = 1000, BOOTSTRAP_SEED  # those of sacreBLEU's own command line
HOW = (
    "Paired bootstrap resampling over sentences: p_value is two-sided, twice the smaller share of resampled differences on "
    "either side of zero; interval holds the middle 95 % of them, and leaves out zero exactly where p_value < 0.05; a_better "
    "is the share of resamples in which a is better."
)
HOW_SACREBLEU = (
    "p_value_sacrebleu is what sacreBLEU (PairedTest, test type bs) prints for the same resamples: where small in effect "
    "one-sided."
)


@dataclasses.dataclass(frozen=True)
class Bootstrap:
    """Two systems by one score. scores: of a and b. differences: a - b on each resample of sentences."""

    task: Task
    name: str
    counts: Counts
    scores: tuple[float, float]
    differences: np.ndarray

    @property
    def difference(self) -> float:
        """a - b on the whole test set."""
        return self.scores[0] - self.scores[1]


def compare(
    record_a: str | os.PathLike,
    record_b: str | os.PathLike,
    *,
    score: str = "",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, Any]:
    """Both systems' `score` (default: sacrebleu, in parsing f1), the difference a - b, its 95 % interval and its two-sided
    p-value, and sacreBLEU's own p-value for a score of sacreBLEU.

    Reads the hypotheses and references beside the records; needs no JAX. Raises UserError for a file that is missing,
    changed or no record, and for records of different test sets or references.
    """
    found = bootstrap(record_a, record_b, score=score, resamples=resamples, seed=seed)
    low, high = interval(found.differences)
    lower = lower_is_better(found.name)
    better = found.differences < 0 if lower else found.differences > 0
    signature = found.counts.signature(bs=resamples, seed=seed)
    told = {
        "score": found.name,
        "spoken": found.task.spoken[found.name],
        "lower_is_better": lower,
        "a": {"record": os.fspath(record_a), "score": round(found.scores[0], 4)},
        "b": {"record": os.fspath(record_b), "score": round(found.scores[1], 4)},
        "difference": round(found.difference, 4),
        "interval": {"level": 0.95, "low": round(low, 4), "high": round(high, 4)},
        "p_value": round(two_sided(found.differences), 6),
    }
    if signature:
        told["p_value_sacrebleu"] = round(sacrebleu_p(found.differences, found.difference), 6)
    how = [HOW, HOW_SACREBLEU if signature else "", f"{told['spoken']}: {found.counts.how}"]
    return told | {
        "a_better": round(float(better.mean()), 4),
        "sentences": len(found.counts.values),
        "resamples": resamples,
        "seed": seed,
        "signature": signature,
        "how": " ".join(filter(None, how)),
    }


def bootstrap(
    record_a: str | os.PathLike,
    record_b: str | os.PathLike,
    *,
    score: str = "",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Bootstrap:
    """Both systems' `score` on the test set, and the differences on `resamples` draws of its sentences. Raises UserError as
    `compare` does.
    """
    task, name, (a, b) = paired_statistics(record_a, record_b, score)
    draws = draw_sentences(len(a.values), resamples, seed)
    differences = np.array([a.percent(a.values[i].sum(0)) - b.percent(b.values[i].sum(0)) for i in draws])
    scores = tuple(float(side.percent(side.values.sum(0))) for side in (a, b))
    return Bootstrap(task, name, a, scores, differences)


def paired_statistics(
    record_a: str | os.PathLike, record_b: str | os.PathLike, score: str = ""
) -> tuple[Task, str, tuple[Counts, Counts]]:
    """The task, the score's name, and what it is computed from in both systems. Raises UserError as `compare` does."""
    a, b = read_record(record_a), read_record(record_b)
    score = check_comparable(a, b, record_a, record_b, score)
    (said_a, references), (said_b, other) = (texts(r, at) for r, at in ((a, record_a), (b, record_b)))
    if references != other:
        raise UserError(
            f"{record_a} and {record_b} name the same test set, but their references differ: evaluate again."
        )
    task = task_of_record(a)
    given = (task.data, task.scoring.sacrebleu_tokenizer, score, tuple(map(tuple, references)))
    return task, score, (_counts(*given, tuple(said_a)), _counts(*given, tuple(said_b)))


@functools.lru_cache(maxsize=64)
def _counts(
    data: Data, tokenizer: str, score: str, references: tuple[tuple[str, ...], ...], said: tuple[str, ...]
) -> Counts:
    """Those of one system. A table compares one with many others, and some metrics take seconds to count."""
    return task_class(data.task)(data, Eval(sacrebleu_tokenizer=tokenizer)).counts(score, said, references)


def describe(comparison: dict[str, Any]) -> str:
    """A comparison in a few lines for people."""
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
    return record | {"config": upgraded(record["config"]) if isinstance(record["config"], dict) else {}}


def planned(config: Config, split: str) -> dict[str, Any]:
    """What a record of this evaluation will say of its data and its config. Raises UserError where the text is not there."""
    source = split_source(config, split)
    data = {"corpus": config.data.corpus, "spec": source.spec, "digest": source.fingerprint()}
    return {"data": data, "config": config_lib.as_json(config)}


def task_of_record(record: dict[str, Any]) -> Task:
    """The task of an evaluation record with its keys; the oldest records do not name one. Raises UserError for a task that
    this version does not have.
    """
    known = {item.name for item in dataclasses.fields(Data)}
    data = Data(**{key: value for key, value in record["config"]["data"].items() if key in known})
    try:
        return task_class(data.task)(data, Eval(sacrebleu_tokenizer=_tokenizer(record)))
    except ModuleNotFoundError:
        raise UserError(f"a record of data.task = {data.task!r}: this version has no such task.") from None


def _tokenizer(record: dict[str, Any]) -> str:
    """sacreBLEU's tokenizer in a record; before there was a choice it was 13a."""
    setting = record["config"].get("eval", {}).get("sacrebleu_tokenizer", "13a")
    return tokenizer_of(setting, record["config"]["data"].get("target_language", Data.target_language))


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
    for key, default in (("task", "translation"), ("pretokenized", None), ("target_language", None)):
        one, other = (record["config"]["data"].get(key, default) for record in (a, b))
        if one != other:
            raise UserError(f"config.data.{key} is {one} in {at_a} and {other} in {at_b}: they cannot be compared.")
    spoken = task_of_record(a).spoken
    score = score or next(iter(spoken))
    if score not in spoken:
        task = a["config"]["data"].get("task", "translation")
        raise UserError(f"systems of data.task = {task} are compared by {', '.join(spoken)}, not by {score!r}.")
    one, other = (_tokenizer(record) for record in (a, b))
    if score == "sacrebleu" and one != other:
        raise UserError(
            f"the sacreBLEU of {at_a} has tokenizer {one}, that of {at_b} {other}: evaluate one again with "
            f"--config.eval.sacrebleu_tokenizer={one}."
        )
    return score


def texts(record: dict[str, Any], at: str | os.PathLike) -> tuple[list[str], list[list[str]]]:
    """Hypotheses, and each set of references, that lie beside a record. Raises UserError where they are not as it describes
    them.
    """
    (hypotheses,) = _lines_of("hypotheses", record, at)
    return hypotheses, _lines_of("references", record, at)


def _lines_of(kind: str, record: dict[str, Any], at: str | os.PathLike) -> list[list[str]]:
    """Of a record's `kind` the lines of its file, or of each where it lists several."""
    names, digests = (of if isinstance(of, list) else [of] for of in (record[kind], record["digests"][kind]))
    found = []
    for name, digest in zip(names, digests, strict=True):
        if os.path.basename(name) != name:
            raise UserError(f"{at} names {name} as its {kind}: they must lie beside the record.")
        file = epath.Path(at).parent / name
        if not file.exists():
            raise UserError(f"the {kind} of {at} are not there: {file}. They must lie beside the record.")
        data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            count = data.count(b"\n")
            raise UserError(f"{file} is not what {at} describes ({count} lines, another digest): evaluate again.")
        found.append(data.decode("utf-8").split("\n")[:-1])
    return found
