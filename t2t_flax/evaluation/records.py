"""Which question a record answers, and the name under which it lies in WORKDIR/eval.

A question is a test set by its content, the checkpoints, and the settings that change a score. Two questions never share a
name, so that no record replaces that of another one; the same question comes back to the record that it has.
"""

import hashlib
import json
from typing import Any

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config.renamed import upgraded
from t2t_flax.config.schema import fields
from t2t_flax.data.dataset import split_source
from t2t_flax.errors import UserError
from t2t_flax.evaluation.metrics import NO_SCORE
from t2t_flax.evaluation.restore import Loaded

# What a record's config holds besides is of the training, of the machine, or of what is printed.
_OTHER = (
    "data.task",
    "data.source_language",
    "data.target_language",
    "data.pretokenized",
    "data.source_eos",
    "train.precision",
)


def question(record: dict[str, Any]) -> dict[str, Any]:
    """What a record answers: its test set, checkpoints, and the settings in which it leaves the defaults (a key that an
    older version did not know had its default).
    """
    checkpoint, config = record["checkpoint"], upgraded(record["config"])
    settings = {}
    for name, item in fields().items():
        group, key = name.split(".")
        if name in _OTHER or group in ("decode", "eval") and name not in NO_SCORE:
            value = config.get(group, {}).get(key, item.default)
            settings |= {} if value == item.default else {name: value}
    return {
        "split": record["split"],
        "data": record["data"]["digest"],
        "steps": list(checkpoint["averaged"]),
        "best": bool((checkpoint.get("asked") or {}).get("best")),
        "settings": settings,
    }


def record_name(loaded: Loaded, split: str, digest: str) -> str:
    """The name of the record of a loaded run on a test set whose content has this digest.

    `test-500`, `test-500-best`, or `test-500-mean5` for an average, where text and settings are those of the run's own
    config; others have a digest of the question behind it, as has one whose name an earlier record of another question
    bears.
    """
    config = config_lib.as_json(loaded.config)
    checkpoint = {"averaged": loaded.steps, "asked": loaded.asked}
    asked = question({"split": split, "data": {"digest": digest}, "checkpoint": checkpoint, "config": config})
    count = len(loaded.steps)
    base = f"{split}-{loaded.steps[0]}" + (f"-mean{count}" if count > 1 else "-best" if asked["best"] else "")
    folder = loaded.workdir / "eval"
    there = {path.stem: _question_in(path) for path in folder.glob(f"{base}*.json")} if folder.exists() else {}
    found = [name for name, other in sorted(there.items()) if other == asked]
    if found:
        return found[0]
    own = loaded.stored or loaded.config
    settings = question(
        {"split": split, "data": {"digest": _own_digest(loaded, split, digest)}, "checkpoint": checkpoint,
         "config": config_lib.as_json(own)}
    )  # fmt: skip
    if settings == asked and there.get(base) is None:
        return base
    return f"{base}-{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]}"


def _question_in(path: epath.Path) -> dict[str, Any] | None:
    """None for a file that is no record."""
    try:
        return question(json.loads(path.read_bytes()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _own_digest(loaded: Loaded, split: str, digest: str) -> str:
    """The digest of the text that the run's own config names; where that is not at hand, it is the same text if it has the
    same name.
    """
    own, now = loaded.stored or loaded.config, loaded.config
    where = [
        (c.data.valid if split == "valid" else config_lib.parse_test_sets(c.data.test).get(split)) for c in (own, now)
    ]
    if where[0] == where[1] and own.data.root == now.data.root and own.seed == now.seed:
        return digest
    try:
        return split_source(own, split).fingerprint()
    except (UserError, OSError):
        return digest if where[0] == where[1] else ""
