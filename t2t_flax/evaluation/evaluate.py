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
from t2t_flax.data.corpus import split_source, split_store
from t2t_flax.data.task import task_of
from t2t_flax.data.tokenizer import UNK
from t2t_flax.evaluation.compare import task_of_record
from t2t_flax.evaluation.load import Loaded
from t2t_flax.files import write_whole
from t2t_flax.parallel.pod import Pod
from t2t_flax.training.run import ValidationLoss
from t2t_flax.training.state import count_params
from t2t_flax.version import __version__

RECORD_VERSION = 1
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "sentencepiece", "sacrebleu", "sacremoses", "numpy")


def evaluate(
    loaded: Loaded, split: str, *, progress: Callable[[int, int], None] | None = None, pod: Pod | None = None
) -> tuple[dict[str, Any], list]:
    """Decodes and scores all sentences of `valid` or `test`; writes WORKDIR/eval/<split>-<step>.json
    (`-mean<n>` for an average of n), .hyp.txt, .ref.txt.

    `progress`: see `Translator.translate`. Of several processes (`pod`) all must call this; each decodes its share, process 0
    writes.

    Returns (the record, the list of (source, reference, hypothesis)).
    """
    began = time.perf_counter()
    source = split_source(loaded.config, split)
    pairs = list(source.pairs())
    translations = loaded.translate([source for source, _ in pairs], progress=progress)
    decode_seconds = time.perf_counter() - began
    task, sources = task_of(loaded.config), [source for source, _ in pairs]
    outputs, targets = [t.text for t in translations], [target for _, target in pairs]
    store = split_store(loaded.config, loaded.workdir, split, loaded.tokenizers, pod=pod)
    nll, _ = ValidationLoss(loaded.config, loaded.model, loaded.mesh, loaded.params, store)(loaded.params)
    scores = task.scores(sources, outputs, targets, samples=loaded.config.eval.bootstrap_samples)
    hypotheses, references = (list(map(task.answer, sources, side)) for side in (outputs, targets))
    texts = {"hypotheses": _lines(hypotheses), "references": _lines(references)}
    name = record_name(loaded, split)
    record = {
        "record_version": RECORD_VERSION,
        "split": split,
        "data": {
            "corpus": loaded.config.data.corpus,
            "spec": source.spec,
            "digest": source.fingerprint(),
            "sentences": len(pairs),
        },
        "scores": scores | {"nll": nll, "perplexity": math.exp(min(nll, 700.0))},
        "counts": {
            "sentences": len(pairs),
            "source_cut": sum(t.source_cut for t in translations),
            "hit_max_length": sum(t.hit_cap for t in translations),
            "empty_source": sum(not s.strip() for s, _ in pairs),
            "unknown_target_tokens": sum(loaded.tokenizers.target.encode(t).count(UNK) for t in targets),
        },
        "checkpoint": {"step": loaded.steps[0], "averaged": list(loaded.steps), "asked": loaded.asked},
        "hypotheses": f"{name}.hyp.txt",
        "references": f"{name}.ref.txt",
        "parameters": count_params(
            loaded.params, loaded.config, loaded.tokenizers.source.vocab_size, loaded.tokenizers.target.vocab_size
        ),
        "digests": {
            "config": hashlib.sha256(config_lib.to_json(loaded.config).encode()).hexdigest(),
            "tokenizer": loaded.tokenizers.digest,
        }
        | {kind: hashlib.sha256(text.encode()).hexdigest() for kind, text in texts.items()},
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
        for kind, text in texts.items():
            write_whole(folder / record[kind], text)
        write_record(folder / f"{name}.json", record)
    return record, list(zip(sources, references, hypotheses, strict=True))


def record_name(loaded: Loaded, split: str) -> str:
    """`test-500`, or `test-500-mean5` for an average: neither replaces the other."""
    count = len(loaded.steps)
    return f"{split}-{loaded.steps[0]}" + (f"-mean{count}" if count > 1 else "")


def summary(record: dict[str, Any]) -> str:
    """A record in a few lines for people."""
    scores, counts, data = record["scores"], record["counts"], record["data"]
    averaged = record["checkpoint"]["averaged"]
    what = f"step {averaged[0]}" if len(averaged) == 1 else f"mean of steps {', '.join(map(str, averaged))}"
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
    write_whole(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def versions() -> dict[str, str]:
    """Versions of what computes a score."""
    found = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"t2t_flax": __version__, "python": platform.python_version()} | found


def _lines(texts: list[str]) -> str:
    return "".join(text + "\n" for text in texts)
