"""Records of evaluations with chosen texts."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np


def record(
    folder: Path,
    name: str,
    said: list[str],
    references: list[str],
    *,
    spec: str = "toy:test",
    data: dict[str, Any] | None = None,
) -> Path:
    """A record with its texts, as `evaluate` writes it. data: of its config."""
    digests = {}
    for kind, end, texts in (("hypotheses", "hyp", said), ("references", "ref", references)):
        text = "".join(t + "\n" for t in texts).encode()
        (folder / f"{name}.{end}.txt").write_bytes(text)
        digests[kind] = hashlib.sha256(text).hexdigest()
    content = {
        "record_version": 1, "digests": digests, "hypotheses": f"{name}.hyp.txt", "references": f"{name}.ref.txt",
        "data": {"corpus": "", "spec": spec, "digest": digests["references"], "sentences": len(references)},
        "config": {"data": {"tokenized": False, "target_language": "de"} | (data or {})},
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(content))
    return folder / f"{name}.json"


def noisy(references: list[str], share: float, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join("x" if rng.random() < share else w for w in r.split()) for r in references]
