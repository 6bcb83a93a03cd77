"""Our train step with the process settings of `train` on a CPU, on padded batches or on the same pairs packed."""

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.engines.child import main, time_training
from benchmarks.models import load_batches
from t2t_flax.config import Config
from t2t_flax.process_setup import prepare_process
from t2t_flax.version import source_digest


def config_of(size: dict[str, Any], *, devices: int = 1, **decode: Any) -> Config:
    """The default config with this model; the vocabulary is padded to a multiple of 8 only, as the peers' is not."""
    c = Config()
    model = dataclasses.replace(
        c.model, num_encoder_layers=size["layers"], num_decoder_layers=size["layers"], d_model=size["d_model"],
        d_ff=size["d_ff"], num_heads=size["heads"], dropout=size["dropout"], pad_vocab_to_multiple=8,
    )  # fmt: skip
    return dataclasses.replace(
        c,
        model=model,
        mesh=dataclasses.replace(c.mesh, cpu_devices=devices),
        decode=dataclasses.replace(c.decode, **decode),
    )


def row_arrays(source: np.ndarray, target: np.ndarray, shards: int) -> dict[str, np.ndarray]:
    """One pair a row, int32 [1, B, L] for each array of a batch; empty rows make B a multiple of `shards`."""
    out = {}
    for side, ids in (("source", source), ("target", target)):
        ids = np.pad(ids, ((0, -len(ids) % shards), (0, 0)))
        positions = np.where(ids > 0, np.arange(ids.shape[1], dtype=np.int32), 0)
        out |= {side: ids, f"{side}_segments": (ids > 0).astype(np.int32), f"{side}_positions": positions}
    return {name: x[None].astype(np.int32) for name, x in out.items()}


def packed_arrays(source: np.ndarray, target: np.ndarray, shards: int, length: int, rows: int = 0):
    """The same pairs in rows of `length` tokens, several in each (at least `rows` rows)."""
    from t2t_flax.data.batching.packing import fill_rows, first_fit
    from t2t_flax.data.store.token_store import Sentences

    lengths = [(x > 0).sum(1) for x in (source, target)]
    row, *starts = first_fit(*lengths, length)
    rows = -(-max(rows, int(row.max()) + 1) // shards) * shards
    out = {}
    for side, ids, count, start in zip(("source", "target"), (source, target), lengths, starts, strict=True):
        sentences = Sentences(ids[ids > 0], np.cumsum(count) - count, count)
        parts = fill_rows(sentences, np.arange(len(ids)), row, start, (rows, length))
        out |= {side if name == "ids" else f"{side}_{name}": x.reshape(1, rows, length) for name, x in parts.items()}
    return out


@dataclasses.dataclass
class Steps:
    """`step(batch)` trains on a batch of `batches` and returns its loss; it compiles a program for each shape."""

    step: Callable[[dict[str, Any]], float]
    batches: list[dict[str, Any]]
    notes: list[str]
    programs: dict[Any, Any] = dataclasses.field(default_factory=dict)
    compile_seconds: float = 0.0


def make_steps(task: dict[str, Any]) -> Steps:
    """The train step of a task on its batches."""
    size, devices = task["size"], task.get("devices", 1)
    c = config_of(size, devices=devices)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = task["compile_cache"]
    notes = prepare_process(c)
    import jax

    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.training.optimizer import make_optimizer
    from t2t_flax.training.train_state import init_state, make_model
    from t2t_flax.training.train_step import make_train_step

    mesh = mesh_lib.make_mesh(c.mesh, jax.devices()[:devices])
    model, tx = make_model(c, size["vocab"], size["vocab"]), make_optimizer(c)
    state, shardings = init_state(c, model, tx, mesh)
    train_step = make_train_step(c, model, tx, mesh, shardings)
    sharding = mesh_lib.named(mesh, mesh_lib.MICRO_ROWS)

    def put(arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        out = {}
        for side in ("source", "target"):
            mine = {name: x for name, x in arrays.items() if name.startswith(side)}
            rows = lambda first, last, mine=mine: {name: x[:, first:last] for name, x in mine.items()}  # noqa: E731
            out |= mesh_lib.to_global(rows, arrays[side].shape, sharding)
        return out

    pairs = load_batches(task["batches"])
    if pack := size["row"] if task.get("pack") else 0:
        most = max(packed_arrays(*batch, devices, pack)["target"].shape[1] for batch in pairs)
        batches = [put(packed_arrays(*batch, devices, pack, most)) for batch in pairs]
    else:
        batches = [put(row_arrays(*batch, devices)) for batch in pairs]
    notes = [*notes, f"{devices} devices", f"packed rows of {pack}" if pack else "one pair a row"]

    def step(batch: dict[str, jax.Array]) -> float:
        nonlocal state
        shape = batch["source"].shape, batch["target"].shape
        with mesh_lib.use(mesh):
            if shape not in steps.programs:
                began = time.perf_counter()
                steps.programs[shape] = train_step.lower(state, batch).compile()
                steps.compile_seconds += time.perf_counter() - began
            state, metrics = steps.programs[shape](state, batch)
        return float(jax.block_until_ready((state, metrics))[1]["loss"])

    steps = Steps(step, batches, notes)
    return steps


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Seconds of training steps; the first pass includes a compilation for every shape."""
    steps = make_steps(task)
    import jax

    result = time_training(steps.step, steps.batches, task["passes"])
    return result | {
        "compile_seconds": steps.compile_seconds,
        "programs": len(steps.programs),
        "settings": ["float32", *steps.notes],
        "versions": {"jax": jax.__version__, "t2t_flax": source_digest()},
    }


if __name__ == "__main__":
    main(measure)
