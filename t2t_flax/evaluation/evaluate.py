"""An evaluation is a record: hypotheses, scores with signatures, and everything that led to them."""

import hashlib
import importlib.metadata
import json
import math
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.data.dataset import split_source, split_store
from t2t_flax.data.task import task_of
from t2t_flax.data.tokenizers.base import UNK
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.evaluation.compare import task_of_record
from t2t_flax.evaluation.metrics import lower_is_better
from t2t_flax.evaluation.records import record_name
from t2t_flax.evaluation.restore import Loaded
from t2t_flax.filesystem import atomic_write
from t2t_flax.training.setup import ValidationLoss
from t2t_flax.training.train_state import count_params
from t2t_flax.version import __version__, source_digest

RECORD_VERSION = 1
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "sentencepiece", "sacrebleu", "sacremoses", "numpy")


def evaluate(
    loaded: Loaded,
    split: str,
    *,
    progress: Callable[[int, int], None] | None = None,
    group: ProcessGroup | None = None,
    why: str = "",
) -> tuple[dict[str, Any], list]:
    """Decodes and scores all sentences of `valid` or of one test set (see `corpus.sets_of`); writes the record
    WORKDIR/eval/NAME.json, with NAME as in `records.record_name`, beside NAME.hyp.txt and NAME.ref.txt
    (further references: NAME.ref2.txt ...).

    `progress`: see `Translator.translate`. `why`: why these checkpoints, for the record. Of several processes (`group`) all
    must call this; each decodes its share, process 0 writes.

    Returns (the record, the list of (source, first reference, hypothesis)).
    """
    source = split_source(loaded.config, split)
    store = split_store(loaded.config, loaded.workdir, split, loaded.tokenizers, group=group)
    # Made first: what does not fit into memory is said before all is decoded.
    loss = ValidationLoss(loaded.config, loaded.model, loaded.mesh, loaded.params, store, split)
    began = time.perf_counter()
    pairs = list(source.pairs())
    translations = loaded.translate([source for source, _ in pairs], progress=progress)
    decode_seconds = time.perf_counter() - began
    task, sources = task_of(loaded.config), [source for source, _ in pairs]
    outputs, targets = [t.text for t in translations], list(zip(*source.references(), strict=True))
    nll = loss(loaded.params)["nll"]
    scores = task.scores(sources, outputs, targets, samples=loaded.config.eval.bootstrap_samples)
    hypotheses, *references = (list(map(task.answer, sources, side)) for side in (outputs, *targets))
    digest = source.fingerprint()
    name = record_name(loaded, split, digest)
    texts = {f"{name}.hyp.txt": _lines(hypotheses)}
    texts |= {f"{name}.ref{n if n > 1 else ''}.txt": _lines(lines) for n, lines in enumerate(references, 1)}
    files, digests = list(texts), [hashlib.sha256(text.encode()).hexdigest() for text in texts.values()]
    record = {
        "record_version": RECORD_VERSION,
        "split": split,
        "data": {
            "corpus": loaded.config.data.corpus,
            "spec": source.spec,
            "digest": digest,
            "sentences": len(pairs),
        },
        "scores": scores | {"nll": nll, "perplexity": math.exp(min(nll, 700.0))},
        "counts": {
            "sentences": len(pairs),
            "source_cut": sum(t.source_cut for t in translations),
            "hit_max_length": sum(t.hit_cap for t in translations),
            "empty_source": sum(not s.strip() for s, _ in pairs),
            "unknown_target_tokens": sum(
                loaded.tokenizers.target.encode(t).count(UNK) for side in targets for t in side
            ),
        },
        "checkpoint": _checkpoint(loaded, why),
        "config_changes": loaded.config_changes,
        "hypotheses": files[0],
        "references": _one_or_all(files[1:]),
        "parameters": count_params(
            loaded.params, loaded.config, loaded.tokenizers.source.vocab_size, loaded.tokenizers.target.vocab_size
        ),
        "digests": {
            "config": hashlib.sha256(config_lib.to_json(loaded.config).encode()).hexdigest(),
            "tokenizer": loaded.tokenizers.digest,
            "code": source_digest(),
            "hypotheses": digests[0],
            "references": _one_or_all(digests[1:]),
        },
        "config": json.loads(config_lib.to_json(loaded.config)),
        "versions": versions(),
        "hardware": {"device": jax.devices()[0].device_kind, "devices": jax.device_count()},
        "seconds": {
            "decode": round(decode_seconds, 3),
            "total": round(time.perf_counter() - began, 3),
        },
    }
    if jax.process_index() == 0:
        folder = loaded.workdir / "eval"
        for file, text in texts.items():
            atomic_write(folder / file, text)
        write_record(folder / f"{name}.json", record)
    return record, list(zip(sources, references[0], hypotheses, strict=True))


def planned_path(loaded: Loaded, split: str) -> epath.Path:
    """Where an evaluation of one test set would write its record."""
    digest = split_source(loaded.config, split).fingerprint()
    return loaded.workdir / "eval" / f"{record_name(loaded, split, digest)}.json"


def path_of(loaded: Loaded, record: dict[str, Any]) -> epath.Path:
    """Where the record of an evaluation lies."""
    return loaded.workdir / "eval" / record["hypotheses"].replace(".hyp.txt", ".json")


def _checkpoint(loaded: Loaded, why: str) -> dict[str, Any]:
    found = {"step": loaded.steps[0], "averaged": list(loaded.steps), "asked": loaded.asked}
    if loaded.metric is not None:
        name = loaded.config.eval.metric
        found["best"] = {"metric": name, "value": -loaded.metric if lower_is_better(name) else loaded.metric}
    return found | ({"why": why} if why else {})


def summary(record: dict[str, Any]) -> str:
    """A record in a few lines for people."""
    scores, counts, data = record["scores"], record["counts"], record["data"]
    averaged = record["checkpoint"]["averaged"]
    what = f"step {averaged[0]}" if len(averaged) == 1 else f"mean of steps {', '.join(map(str, averaged))}"
    if best := record["checkpoint"].get("best"):
        what += f", the best by {best['metric']} ({best['value']:.4f})"
    corpus = f"{data['corpus']}, " if data.get("corpus") else ""
    lines = [f"{record['split']} ({corpus}{data['spec']}, {counts['sentences']} sentences), {what}:"]
    lines += task_of_record(record).summary(scores)
    if counts["unknown_target_tokens"]:
        lines.append(
            f"  {counts['unknown_target_tokens']} tokens of the references are unknown to the model: it cannot say them"
        )
    if counts["source_cut"]:
        lines.append(f"  {counts['source_cut']} sources were cut to config.decode.max_source_length")
    if counts["hit_max_length"]:
        lines.append(f"  {counts['hit_max_length']} outputs hit their length cap without ending")
    return "\n".join(lines)


def write_record(path: epath.Path, record: dict[str, Any]) -> None:
    """A record as a file that people can read."""
    atomic_write(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def versions() -> dict[str, str]:
    """Versions of what computes a score."""
    found = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"t2t_flax": __version__, "python": platform.python_version()} | found


def _one_or_all(values: list[str]) -> str | list[str]:
    """Of a record with one reference its own value, of one with several the list."""
    return values[0] if len(values) == 1 else values


def _lines(texts: list[str]) -> str:
    return "".join(text + "\n" for text in texts)
