"""Which evaluations of many runs and checkpoints are there already, and how they compare."""

import os
from collections.abc import Sequence
from typing import Any

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.data.dataset import split_source
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.evaluation.compare import (
    RESAMPLES,
    bootstrap,
    check_comparable,
    planned,
    read_record,
    task_of_record,
    texts,
)
from t2t_flax.evaluation.evaluate import versions
from t2t_flax.evaluation.parameters import Choice
from t2t_flax.evaluation.restore import stored_config
from t2t_flax.evaluation.significance import interval, multipliers, two_sided
from t2t_flax.version import source_digest

COLUMNS = ("run", "checkpoint", "score", "difference", "two-sided p (Holm)", "sentences")


def existing_record(
    workdir: str | os.PathLike, split: str, choice: Choice, overrides: dict[str, str]
) -> epath.Path | None:
    """The record of that evaluation of one test set, if it was made with the same code, config, tokenizer and versions, of
    the same text, by the same choice among the same checkpoints, and its texts are there; None where it is to be made.
    Raises UserError where the folder holds no run.
    """
    config = stored_config(workdir, overrides)
    asked, digest = choice.asked(workdir), split_source(config, split).fingerprint()
    tokenizer = TokenizerPair.load(epath.Path(workdir) / "tokenizer").digest
    wanted = split, digest, tokenizer, source_digest(), versions(), _settings(config_lib.as_json(config))
    for path in sorted((epath.Path(workdir) / "eval").glob(f"{split}-*.json")):
        try:
            record = read_record(path)
            texts(record, path)
        except UserError:  # what is no record, or has lost its texts, is made anew
            continue
        was, averaged = dict(record["checkpoint"].get("asked") or {}), record["checkpoint"]["averaged"]
        fewer = was.pop("at_most", False) and len(averaged) < choice.average
        chosen = was == asked and not fewer
        if choice == Choice(step=choice.step) and "best" not in was:  # by whatever choice it was the newest then
            chosen |= averaged == [choice.step]
        digests = record["digests"]
        made = record["split"], record["data"]["digest"], digests["tokenizer"], digests.get("code")
        if chosen and (*made, record["versions"], _settings(record["config"])) == wanted:
            return path
    return None


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """A config without the keys that say where on a machine something lies."""
    groups = {group: dict(keys) for group, keys in config.items() if isinstance(keys, dict)}
    for group, key in (("data", "cache"), ("train", "compile_cache")):
        groups.get(group, {}).pop(key, None)
    return groups


def check_runs(workdirs: Sequence[str], split: str, score: str, overrides: dict[str, str]) -> None:
    """Raises UserError for runs of different tasks or test sets, or a score that their task does not have."""
    first = planned(stored_config(workdirs[0], overrides), split)
    for workdir in workdirs:
        check_comparable(planned(stored_config(workdir, overrides), split), first, workdir, workdirs[0], score)


def comparison(records: Sequence[os.PathLike | None], names: Sequence[str], score: str) -> list[list[str]]:
    """A line of `COLUMNS` for each record: its score, and the paired difference to the first one with its 95 % interval and
    two-sided p-value, both corrected for the number of records (Holm). None where there is no record: without the first
    there are no differences.

    Raises UserError for records of different test sets or tasks.
    """
    others = [path for path in records if path is not None and path != records[0]] if records[0] is not None else []
    count = max(RESAMPLES, 200 * len(others))  # a corrected p-value can be far below 0.05 with any number of records
    found = {path: bootstrap(path, records[0], score=score, resamples=count) for path in others}
    observed = {path: two_sided(of.differences) for path, of in found.items()}
    factors = dict(zip(observed, multipliers(list(observed.values()), named=True), strict=True))
    lines = []
    for path, name in zip(records, names, strict=True):
        if path is None:
            lines.append([name, "", "not evaluated", "", "", ""])
            continue
        record = read_record(path)
        chosen = score or next(iter(task_of_record(record).spoken))
        difference = p_value = ""
        if path in found:
            low, high = interval(found[path].differences, factors[path])
            difference = f"{found[path].difference:+.2f} [{low:+.2f}, {high:+.2f}]"
            p_value = f"{min(1.0, observed[path] * factors[path]):.3g}"
        value = f"{record['scores'][chosen]['score']:.2f}"
        lines.append([name, _checkpoint(record), value, difference, p_value, str(record["data"]["sentences"])])
    return lines


def _checkpoint(record: dict[str, Any]) -> str:
    steps = record["checkpoint"]["averaged"]
    if "best" in record["checkpoint"]:
        return f"{steps[0]} (best)"
    return str(steps[0]) if len(steps) == 1 else f"mean of {len(steps)} up to {steps[0]}"
