"""Seconds of an update, and the seconds that inspection.layers_every adds to every n-th one.

    python -m benchmarks.layers --config=toy --updates=40 --out=benchmarks/results/layers.json

Medians of updates of a config and their measuring, in turns. --config.KEY=VALUE changes keys of the
config.
"""

import dataclasses
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np
from etils import epath

from benchmarks.record import command_of, machine, publish
from t2t_flax.cli import arguments
from t2t_flax.config import Config, load_config
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.extensions.inspection import layers
from t2t_flax.process_setup import prepare_process
from t2t_flax.tasks import task_of
from t2t_flax.training.hooks import call_hooks
from t2t_flax.training.parts import TrainProgress
from t2t_flax.training.prefetcher import put_batch
from t2t_flax.training.setup import compile_programs, set_up_training, train_program
from t2t_flax.training.train_state import init_state

EVERY = 100


def measure(config: Config, updates: int, folder: epath.Path) -> dict[str, Any]:
    """Medians, in milliseconds; the first two updates are left out."""
    setup = set_up_training(config, folder, prepare_corpus(task_of(config), folder))
    state, _ = init_state(config, setup.model, setup.tx, setup.parametrization, setup.mesh)
    began = time.perf_counter()
    programs = compile_programs(train_program(setup), setup.batches.shapes, setup.mesh)
    compiled = time.perf_counter()
    every = dataclasses.replace(setup, config=config.with_values({"inspection.layers_every": 1}))
    hooks = layers.hooks(every, TrainProgress(), ProcessGroup())
    compiling = [compiled - began, time.perf_counter() - compiled]
    taken, values = [], {}
    for number in range(1, updates + 3):
        batch = put_batch(setup.batches.batch(number - 1), setup.mesh)
        start = time.perf_counter()
        call_hooks(hooks, "before", number, state, batch)
        call_hooks(hooks, "update", number, batch, values)
        between = time.perf_counter()
        with mesh_lib.use(setup.mesh):
            state, metrics = programs[batch.arrays["target"].shape](state, batch.arrays)
        jax.block_until_ready((state, metrics))
        taken.append((time.perf_counter() - between, between - start))
    step, measuring = (1000 * float(np.median(each)) for each in np.array(taken[2:]).T)
    shape = max(setup.batches.shapes, key=lambda shape: shape.slots)
    return {
        "update": f"{shape}",
        "numbers": len(values),
        "update_ms": round(step, 1),
        "measuring_ms": round(measuring, 1),
        f"percent_of_training_at_every_{EVERY}": round(100 * measuring / (EVERY * step), 2),
        "compile_seconds": {
            "train step": round(compiling[0], 1),
            "measuring": round(compiling[1], 1),
        },
    }


def main(argv: list[str]) -> None:
    """Measure and write the record."""
    parser = arguments.parser("layers", __doc__)
    arguments.add_config(parser)
    parser.add_argument("--updates", type=arguments.count(1), default=40)
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    args, overrides = arguments.parse(parser, argv)
    config = load_config(args.config, overrides)
    prepare_process(config)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(config, args.updates, epath.Path(folder))
    what = "milliseconds of an update, and of measuring its layers"
    publish(
        {"what": what, "command": command_of("layers", argv), **found, "machine": machine()},
        args.out,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
