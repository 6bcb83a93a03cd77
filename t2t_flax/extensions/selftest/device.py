"""Probe on the mesh of the run, by the run's own programs.

It checks where its arrays are, its layers, and one update.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.selftest.probe import Probe
from t2t_flax.extensions.selftest.reference import activations
from t2t_flax.extensions.shared.recorded_gradients import Recorded, recording
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.parts import TrainState
from t2t_flax.training.precision import compiler_options
from t2t_flax.training.setup import batch_struct
from t2t_flax.training.train_state import abstract_state, make_model
from t2t_flax.training.train_step import jit_train_step


class Programs(NamedTuple):
    """Programs of the probe.

    Args:
        layers: (params, batch) -> activations [shards, B / shards, L, ...] of the first microbatch
            by name.
        update: the train step.
        lowered: text of the train step before compilation.
        compiled: text of the compiled train step.
    """

    layers: Any
    update: Any
    lowered: str
    compiled: str


class DeviceRun:
    """Probe on its mesh."""

    def __init__(self, probe: Probe):
        self.probe, self.config, self.mesh = probe, probe.config, probe.mesh
        self.model = make_model(
            self.config, *probe.vocab, platform=self.mesh.devices.flat[0].platform
        )
        self.parametrization = parametrization_of(self.config)
        self._tx = recording(make_optimizer(self.config, self.parametrization))
        self.abstract, self.shardings = abstract_state(
            self.config, self.model, self._tx, self.parametrization, self.mesh
        )

    def place(self, state: TrainState) -> TrainState:
        """Put the state, of NumPy arrays, on the devices.

        The recorded gradients are zeros.
        """
        zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.abstract.opt_state.grads)
        state = dataclasses.replace(state, opt_state=Recorded(zeros, state.opt_state))
        return jax.tree.map(_put, state, self.shardings)

    def batch(self) -> dict[str, jax.Array]:
        """Return the batch [A, B, L] on the devices."""
        rows = lambda first, last: {name: x[:, first:last] for name, x in self.probe.arrays.items()}  # noqa: E731
        return mesh_lib.to_global(
            rows, self.probe.size, mesh_lib.named(self.mesh, mesh_lib.MICRO_ROWS)
        )

    def compile(self) -> Programs:
        """Compile the programs; the train step is compiled as for a training."""
        rows = mesh_lib.named(self.mesh, mesh_lib.MICRO_ROWS)
        struct = batch_struct(self.probe.size, rows)
        step = jit_train_step(
            self.config, self.model, self._tx, self.parametrization, self.mesh, self.shardings
        )
        layers = jax.jit(self._layers, in_shardings=(self.shardings.params, rows))
        options = compiler_options(self.config)
        with mesh_lib.use(self.mesh):
            lowered = step.lower(self.abstract, struct)
            update = lowered.compile(options)
            by_layer = layers.lower(self.abstract.params, struct).compile(options)
        return Programs(by_layer, update, lowered.as_text(), update.as_text() or "")

    def _layers(self, params, batch):
        def on_shard(params, part):
            rows, numbers = part
            noise = Noise(noise_key(self.config.seed.dropout, 0), numbers)
            return activations(self.model, self.parametrization.merge(params), rows, noise)

        numbers = jnp.arange(self.probe.size[1], dtype=jnp.uint32)
        first = jax.tree.map(lambda x: x[0], batch)
        seen = mesh_lib.over_shards(on_shard, self.probe.shards)(params, (first, numbers))
        return seen if self.probe.shards > 1 else jax.tree.map(lambda x: x[None], seen)

    def whole(self, tree: Any) -> Any:
        """Return arrays of the mesh as NumPy arrays, on every process."""
        return jax.device_get(mesh_lib.replicated(tree, self.mesh))


def _put(x: np.ndarray, sharding: jax.sharding.NamedSharding) -> jax.Array:
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
