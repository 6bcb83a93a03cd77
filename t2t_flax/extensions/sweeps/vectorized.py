"""The compiled train step of several runs that differ in scalars alone: one step, vectorized over a leading axis of runs that
is sharded over the devices.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from t2t_flax.config import Config
from t2t_flax.config.schema import MESH_AXES
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.sweeps.trials import NUMBERS, RATES, vectorization_conflict
from t2t_flax.models.dropout import Rate
from t2t_flax.training.hooks import Hook
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.setup import TrainingSetup, batch_struct, check_fits_in_memory, compiler_options
from t2t_flax.training.train_state import TrainState
from t2t_flax.training.train_step import train_step

TRIAL = "trial"


class VectorizedProgram:
    """One train step of several runs, each of which has its own scalars; the batch is the same for all. States and metrics
    have a first axis of runs.
    """

    def __init__(self, runs: list[TrainingSetup], hooks: Sequence[Hook] = ()):
        if conflict := next(filter(None, (vectorization_conflict(runs[0].config, run.config) for run in runs)), ""):
            raise ValueError(f"the runs cannot be vectorized: {conflict}")
        self.mesh, self._runs, config = trial_mesh(len(runs)), runs, runs[0].config
        self._trials = NamedSharding(self.mesh, PartitionSpec(TRIAL))
        replicated = NamedSharding(self.mesh, PartitionSpec())

        def step_of_one(state: TrainState, values: dict[str, Any], batch: dict[str, jax.Array]):
            own = config.with_values(values)  # traced
            model = runs[0].model.clone(config=own.model)
            return train_step(own, model, make_optimizer(own), hooks=hooks)(state, batch)

        step = jax.jit(
            jax.vmap(step_of_one, in_axes=(0, 0, None), spmd_axis_name=TRIAL),
            donate_argnums=0,
            in_shardings=(self._trials, self._trials, replicated),
            out_shardings=(self._trials, self._trials),
        )
        self._scalars = self._stack([scalars(run.config) for run in runs])
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((len(runs), *x.shape), x.dtype, sharding=self._trials), runs[0].abstract
        )
        self._programs: dict[tuple[int, ...], jax.stages.Compiled] = {}
        advice = "Train fewer runs together, or lower config.data.microbatch_tokens."
        for shape in sorted(runs[0].batches.shapes, key=lambda s: -s.length * s.rows):
            size = (shape.micro, shape.rows, shape.length)
            with mesh_lib.use(self.mesh):
                lowered = step.lower(abstract, self._scalars, batch_struct(size, replicated))
                self._programs[size] = lowered.compile(compiler_options(config))
            check_fits_in_memory(f"the train step of {len(runs)} runs for {shape}", self._programs[size], advice)

    def __call__(self, state: TrainState, arrays: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
        """One update of every run. The state is donated."""
        return self._programs[arrays["target"].shape](state, self._scalars, arrays)

    def join(self, states: list[TrainState]) -> TrainState:
        """The runs' own states as one; a copy."""
        return self._stack(states)

    def state_of(self, state: TrainState, i: int) -> TrainState:
        """Run i's own state where the run has it; a copy."""
        own = self._runs[i].abstract
        return jax.tree.map(lambda x, like: jax.device_put(np.asarray(x[i]), like.sharding), state, own)

    def _stack(self, trees: list[Any]) -> Any:
        stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *trees)
        return jax.device_put(stacked, self._trials)


def trial_mesh(count: int, devices: list | None = None) -> jax.sharding.Mesh:
    """A mesh whose first axis divides `count` runs over as many devices as divide them evenly; its other axes are 1."""
    devices = jax.devices() if devices is None else devices
    size = max(n for n in range(1, min(count, len(devices)) + 1) if count % n == 0)
    grid = np.array(devices[:size]).reshape(size, *(1 for _ in MESH_AXES))
    return jax.sharding.Mesh(grid, (TRIAL, *MESH_AXES), axis_types=(AxisType.Auto,) * (1 + len(MESH_AXES)))


def scalars(config: Config) -> dict[str, Any]:
    """The config's scalars as arrays: Rate for dropout, uint32 for the seed, float32 for the rest."""
    out: dict[str, Any] = {key: np.float32(config.value(key)) for key in NUMBERS}
    for key in RATES:
        value = config.value(key)
        out[key] = Rate.of(config.model.dropout if value is None else value)
    out["seed.dropout"] = np.uint32(config.seed.dropout % 2**32)
    return out
