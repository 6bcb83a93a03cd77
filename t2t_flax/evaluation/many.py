"""Which evaluations of many runs and checkpoints are there already, and how they compare."""

import os
from collections.abc import Sequence
from typing import Any

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.data.corpus import split_source
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.evaluation.compare import check_comparable, compare, planned, read_record, task_of_record, texts
from t2t_flax.evaluation.evaluate import versions
from t2t_flax.evaluation.load import asked_for, stored_config

COLUMNS = ("run", "checkpoint", "score", "difference", "p", "sentences")


def existing_record(
    workdir: str | os.PathLike, split: str, step: int | None, average: int, overrides: dict[str, str]
) -> epath.Path | None:
    """The record of that evaluation, if it was made with the same config, tokenizer and versions, of the same text, by the
    same choice among the same checkpoints, and its texts are there; None where it is to be made. Raises UserError where the
    folder holds no run.
    """
    config = stored_config(workdir, overrides)
    asked, digest = asked_for(workdir, step, average), split_source(config, split).fingerprint()
    tokenizer = TokenizerPair.load(epath.Path(workdir) / "tokenizer").digest
    for path in sorted((epath.Path(workdir) / "eval").glob(f"{split}-*.json")):
        try:
            record = read_record(path)
            texts(record, path)
        except UserError:  # what is no record, or has lost its texts, is made anew
            continue
        was, averaged = dict(record["checkpoint"].get("asked") or {}), record["checkpoint"]["averaged"]
        enough = not was.pop("at_most", False) or len(averaged) == max(1, average)
        chosen = was == asked and enough or average <= 1 and averaged == [step]
        made = record["data"]["digest"], record["digests"]["tokenizer"], record["versions"], record["config"]
        if chosen and made == (digest, tokenizer, versions(), config_lib.as_json(config)):
            return path
    return None


def check_runs(workdirs: Sequence[str], split: str, score: str, overrides: dict[str, str]) -> None:
    """Raises UserError for runs of different tasks or test sets, or a score that their task does not have."""
    first = planned(stored_config(workdirs[0], overrides), split)
    for workdir in workdirs:
        check_comparable(planned(stored_config(workdir, overrides), split), first, workdir, workdirs[0], score)


def comparison(records: Sequence[os.PathLike | None], names: Sequence[str], score: str) -> list[list[str]]:
    """A line of `COLUMNS` for each record: its score, and the paired difference to the first one. None where there is no
    record: without the first there are no differences.

    Raises UserError for records of different test sets or tasks.
    """
    lines = []
    for path, name in zip(records, names, strict=True):
        if path is None:
            lines.append([name, "", "not evaluated", "", "", ""])
            continue
        record = read_record(path)
        chosen = score or next(iter(task_of_record(record).spoken))
        difference = p_value = ""
        if records[0] is not None and path != records[0]:
            told = compare(path, records[0], score=chosen)
            interval = told["interval"]
            difference = f"{told['difference']:+.2f} [{interval['low']:+.2f}, {interval['high']:+.2f}]"
            p_value = f"{told['p_value']:.3g}"
        value = f"{record['scores'][chosen]['score']:.2f}"
        lines.append([name, _checkpoint(record), value, difference, p_value, str(record["data"]["sentences"])])
    return lines


def _checkpoint(record: dict[str, Any]) -> str:
    steps = record["checkpoint"]["averaged"]
    return str(steps[0]) if len(steps) == 1 else f"mean of {len(steps)} up to {steps[0]}"
