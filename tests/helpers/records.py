"""Records of evaluations with chosen texts."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np


def record(
    folder: Path,
    name: str,
    hypotheses: list[str],
    references: list[str],
    *,
    spec: str = "toy:test",
    data: dict[str, Any] | None = None,
    eval: dict[str, Any] | None = None,
    more: list[list[str]] | None = None,
) -> Path:
    """Write a record with its texts, as `evaluate` does.

    data, eval: keys of its config. more: further references.
    """
    ends = ["hyp", "ref", *(f"ref{n}" for n in range(2, 2 + len(more or [])))]
    digests = []
    for end, texts in zip(ends, (hypotheses, references, *(more or [])), strict=True):
        text = "".join(t + "\n" for t in texts).encode()
        (folder / f"{name}.{end}.txt").write_bytes(text)
        digests.append(hashlib.sha256(text).hexdigest())
    names = [f"{name}.{end}.txt" for end in ends]

    def one_or_all(values):
        return values if more else values[0]

    content = {
        "record_version": 1, "digests": {"hypotheses": digests[0], "references": one_or_all(digests[1:])},
        "hypotheses": names[0], "references": one_or_all(names[1:]),
        "data": {"corpus": "", "spec": spec, "digest": digests[1], "sentences": len(references)},
        "config": {"data": {"pretokenized": False, "target_language": "de"} | (data or {}), "eval": eval or {}},
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(content))
    return folder / f"{name}.json"


def noisy(references: list[str], share: float, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join("x" if rng.random() < share else w for w in r.split()) for r in references]


def without_search(monkeypatch) -> None:
    """Replaces decoding by copying sources, which takes no time."""
    from t2t_flax.decoding.translator import Hypothesis, Translation
    from t2t_flax.evaluation.restore import TrainedModel

    def translate(self, lines, **_):
        return [Translation((Hypothesis(line, (), 0.0, 0.0, False),)) for line in lines]

    monkeypatch.setattr(TrainedModel, "translate", translate)
    monkeypatch.setattr(
        "t2t_flax.evaluation.evaluate.ValidationLoss",
        lambda *_: lambda params: {"nll": 1.0, "loss": 1.0},
    )
