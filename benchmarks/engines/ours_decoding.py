"""Our Translator on sentences that are ids already, with one cap for each group of sentences."""

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.engines.child import main
from benchmarks.models import EOS, read_json
from t2t_flax.config import Config, Model
from t2t_flax.data.tokenizers import Tokenizer
from t2t_flax.extensions.interop.safetensors_file import unflatten
from t2t_flax.process_setup import prepare_process
from t2t_flax.version import source_digest


class Ids:
    """A tokenizer of text that is ids: "17 4 9"."""

    frame = Tokenizer.frame

    def split(self, text: str) -> tuple[list[int], str]:
        return [], text

    def encode_text(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return ""


def read_model(folder: str | Path) -> tuple[Model, dict[str, Any], int]:
    """Read (model config, parameters, vocabulary) from the files of `engines.weights`."""
    stored = read_json(Path(folder, "model.json"))
    with np.load(Path(folder, "weights.npz")) as arrays:
        params = unflatten({name: arrays[name] for name in arrays.files})
    return Model(**stored["keys"]), params, stored["vocab"]


def make_translate(task: dict[str, Any]) -> tuple[Callable[[], list], list[str]]:
    """Return (a function that translates all groups of a task once, notes on the process)."""
    devices, c = task.get("devices", 1), Config()
    keys, params, vocab = read_model(task["folder"])
    decode = dataclasses.replace(
        c.decode,
        batch_size=task["batch_size"],
        beam_size=task["beam_size"],
        alpha=task["alpha"],
        length_penalty="power",
        early_stopping="beam_full",
        max_length_ratio=0.0,
    )
    c = dataclasses.replace(
        c,
        model=keys,
        mesh=dataclasses.replace(c.mesh, cpu_devices=devices),
        decode=decode,
    )
    os.environ["JAX_COMPILATION_CACHE_DIR"] = task["compile_cache"]
    notes = prepare_process(c)
    import jax

    from t2t_flax.decoding.translator import Translator, batches_at_once
    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.training.train_state import make_model

    mesh = mesh_lib.make_mesh(c.mesh, jax.devices()[:devices])
    model = make_model(c, vocab, vocab, precision=task.get("precision", "float32"))
    params = jax.device_put(params, mesh_lib.named(mesh, mesh_lib.REPLICATED))
    tokenizers = SimpleNamespace(source=Ids(), target=Ids())
    at_once = batches_at_once(mesh)
    groups = []
    for group in task["groups"]:
        capped = c.with_values({"decode.max_length_offset": group["cap"]})
        lines = [" ".join(map(str, ids[:-1])) for ids in group["sources"]]
        groups.append((Translator(model, tokenizers, mesh, capped, at_once=at_once), lines))
    assert all(ids[-1] == EOS for group in task["groups"] for ids in group["sources"])

    def translate() -> list:
        return [t for translator, lines in groups for t in translator.translate(params, lines)]

    return translate, [*notes, f"{devices} devices, {task['batch_size']} sentences each"]


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Time the translation of all groups; the first pass includes the compilations."""
    run, notes = make_translate(task)
    import jax

    def translate() -> tuple[float, list]:
        began = time.perf_counter()
        done = run()
        return time.perf_counter() - began, [translation.hypotheses[0] for translation in done]

    first, _ = translate()
    timed = [translate() for _ in range(task["passes"])]
    hypotheses = timed[-1][1]
    return {
        "first_pass_seconds": first,
        "seconds": [seconds for seconds, _ in timed],
        "outputs": [list(h.tokens) for h in hypotheses],
        "scores": [h.score for h in hypotheses],
        "settings": [task.get("precision", "float32"), *notes],
        "versions": {"jax": jax.__version__, "t2t_flax": source_digest()},
    }


if __name__ == "__main__":
    main(measure)
