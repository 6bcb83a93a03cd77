"""Updates of a small model on a mesh."""

import jax
import numpy as np
import optax

from helpers.configs import devices_mesh, model_and_state
from t2t_flax.data.batching.batches import Batches
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.prefetcher import put_batch
from t2t_flax.training.train_step import jit_train_step


def run_updates(config, store, mesh_shape=(1, 1, 1), updates=4):
    """(initial state on the host, state, metrics of the updates)."""
    mesh = devices_mesh(*mesh_shape)
    model, tx, state, shardings = model_and_state(config, mesh)
    before, metrics = jax.device_get(state), []
    batches = Batches(store, config.data, seed=0, shards=mesh_lib.batch_shards(mesh))
    step = jit_train_step(config, model, tx, parametrization_of(config), mesh, shardings)
    with mesh_lib.use(mesh):
        for k in range(updates):
            state, values = step(state, put_batch(batches.batch(k), mesh).arrays)
            metrics.append({name: float(x) for name, x in values.items()})
    return before, state, metrics


def updates_of(tx: optax.GradientTransformation, grads: list, params) -> list:
    """The updates of an optimizer for a sequence of gradients, at fixed parameters."""
    state, out, jitted = tx.init(params), [], jax.jit(tx.update)
    for g in grads:
        update, state = jitted(g, state, params)
        out.append(update)
    return out


def assert_trees_close(a, b, **tolerance) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)
