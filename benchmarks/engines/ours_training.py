"""Our train step with the process settings of `train` on a CPU, on padded batches."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.engines.child import main, time_training
from benchmarks.models import load_batches
from t2t_flax.config import Config
from t2t_flax.process_setup import prepare_process
from t2t_flax.registry import load_extensions
from t2t_flax.version import source_digest


def config_of(size: dict[str, Any], *, devices: int = 1, precision: str = "float32") -> Config:
    """Return the default config with this model.

    The vocabulary is padded to a multiple of 8 only, because the peers do not pad it.
    """
    c = Config()
    model = dataclasses.replace(
        c.model,
        num_encoder_layers=size["layers"],
        num_decoder_layers=size["layers"],
        d_model=size["d_model"],
        d_ff=size["d_ff"],
        num_heads=size["heads"],
        dropout=size["dropout"],
        pad_vocab_to_multiple=8,
    )
    return dataclasses.replace(
        c,
        model=model,
        mesh=dataclasses.replace(c.mesh, cpu_devices=devices),
        train=dataclasses.replace(c.train, precision=precision),
    )


def random_state(config: Config, vocab: int) -> Any:
    """Return a new state on all devices."""
    from t2t_flax.distributed.mesh import make_mesh
    from t2t_flax.training.optimizer import make_optimizer
    from t2t_flax.training.parametrization import parametrization_of
    from t2t_flax.training.train_state import init_state, make_model

    model = make_model(config, vocab, vocab)
    parametrization = parametrization_of(config)
    tx = make_optimizer(config, parametrization)
    return init_state(config, model, tx, parametrization, make_mesh(config.mesh))[0]


def row_arrays(source: np.ndarray, target: np.ndarray, shards: int) -> dict[str, np.ndarray]:
    """Return int32 arrays [1, B, L], a pair a row; empty rows make B a multiple of `shards`."""
    out = {}
    for side, ids in (("source", source), ("target", target)):
        ids = np.pad(ids, ((0, -len(ids) % shards), (0, 0)))
        positions = np.where(ids > 0, np.arange(ids.shape[1], dtype=np.int32), 0)
        out |= {
            side: ids,
            f"{side}_segments": (ids > 0).astype(np.int32),
            f"{side}_positions": positions,
        }
    return {name: x[None].astype(np.int32) for name, x in out.items()}


def make_steps(
    task: dict[str, Any],
) -> tuple[Callable[[Any], float], list[Any], list[str], dict[Any, Any]]:
    """Return a function that trains on a batch, the batches, notes, and compiled programs.

    The function returns the loss; the notes tell about the process; programs are keyed by shape.
    """
    load_extensions()
    size, devices, precision = (
        task["size"],
        task.get("devices", 1),
        task.get("precision", "float32"),
    )
    c = config_of(size, devices=devices, precision=precision).with_values(task.get("keys", {}))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = task["compile_cache"]
    notes = prepare_process(c)
    import jax

    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.training.optimizer import make_optimizer
    from t2t_flax.training.parametrization import parametrization_of
    from t2t_flax.training.precision import compiler_options
    from t2t_flax.training.train_state import init_state, make_model
    from t2t_flax.training.train_step import jit_train_step

    mesh = mesh_lib.make_mesh(c.mesh, jax.devices()[:devices])
    model, parametrization = make_model(c, size["vocab"], size["vocab"]), parametrization_of(c)
    tx = make_optimizer(c, parametrization)
    state, shardings = init_state(c, model, tx, parametrization, mesh)
    train_step = jit_train_step(c, model, tx, parametrization, mesh, shardings)
    sharding = mesh_lib.named(mesh, mesh_lib.MICRO_ROWS)
    programs = {}

    def put(arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        out = {}
        for side in ("source", "target"):
            mine = {name: x for name, x in arrays.items() if name.startswith(side)}

            def rows(first, last, mine=mine):
                return {name: x[:, first:last] for name, x in mine.items()}

            out |= mesh_lib.to_global(rows, arrays[side].shape, sharding)
        return out

    def step(batch: dict[str, jax.Array]) -> float:
        """Train on a batch, and return its loss."""
        nonlocal state
        shape = batch["source"].shape, batch["target"].shape
        with mesh_lib.use(mesh):
            if shape not in programs:
                programs[shape] = train_step.lower(state, batch).compile(compiler_options(c))
            state, metrics = programs[shape](state, batch)
        return float(jax.block_until_ready((state, metrics))[1]["loss"])

    batches = [
        put(row_arrays(*batch, mesh_lib.batch_shards(mesh)))
        for batch in load_batches(task["batches"])
    ]
    return step, batches, [precision, *notes, f"{devices} devices", "one pair a row"], programs


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Time training steps; the first pass includes a compilation for every shape."""
    step, batches, notes, programs = make_steps(task)
    import jax

    return time_training(step, batches, task["passes"]) | {
        "programs": len(programs),
        "settings": notes,
        "versions": {"jax": jax.__version__, "t2t_flax": source_digest()},
    }


if __name__ == "__main__":
    main(measure)
