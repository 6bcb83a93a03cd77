"""One update as a pure function: gradient, optimizer, finite check."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from t2t_flax.config import Config
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.mesh import Params, PyTree
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.models.transformer import Transformer, matmul_precision_scope
from t2t_flax.training.losses import Sums, loss_sums, means, zero_sums
from t2t_flax.training.optimizer import (
    LARGEST_RATE,
    all_finite,
    apply_gradients,
    global_norm,
    has_bounded_updates,
    learning_rate_schedule,
    where_finite,
)
from t2t_flax.training.parametrization import Parametrization, join
from t2t_flax.training.parts import TrainOptimizer, TrainState
from t2t_flax.training.precision import result_casts
from t2t_flax.training.train_state import gradient_shardings

Arrays = dict[str, jax.Array]
TrainStep = Callable[[TrainState, Arrays], tuple[TrainState, Sums]]
"""Function (state, batch) -> (new state, metrics)."""


def make_train_step(
    config: Config,
    model: Transformer,
    tx: TrainOptimizer,
    parametrization: Parametrization,
    mesh: jax.sharding.Mesh,
) -> TrainStep:
    """Make the train step, a pure function (state, batch) -> (new state, metrics).

    Each array of `batch` is int32 [A, B, L]: A microbatches of B rows of L tokens. The gradient is
    the mean over real target tokens. Each device sums it in float32; between devices, matrices are
    exchanged in the compute dtype.

    The metrics are float32 scalars: loss, nll and the token metrics (all per token), tokens,
    grad_norm (of the trained parameters), learning_rate, and finite. `finite` is 1 if the loss, the
    gradient norm and the updated parameters are finite, else 0. An update that is not finite is not
    applied: only `step` and the schedule advance, because batch, dropout and rate are functions of
    the update's number.
    """
    rate_of_update = learning_rate_schedule(config)
    bounded = has_bounded_updates(config.optimizer) and not tx.average
    shards, platform = mesh_lib.batch_shards(mesh), mesh.devices.flat[0].platform
    shardings = gradient_shardings(config, model, parametrization, mesh)

    def train_step(state: TrainState, batch: Arrays) -> tuple[TrainState, Sums]:
        trained, frozen = parametrization.split(state.params)
        key = noise_key(config.seed.dropout, state.step)

        def loss(trained: Params, microbatch: tuple[Arrays, jax.Array]) -> tuple[jax.Array, Sums]:
            arrays, row_numbers = microbatch
            params = parametrization.merge(join(trained, frozen))
            return loss_sums(config, model, params, arrays, Noise(key, row_numbers))

        # Each device sums the gradients of its own rows over all microbatches. Only then are the
        # sums of the devices added, once: jit alone would add them after every microbatch.
        gradient = mesh_lib.over_shards(jax.value_and_grad(loss, has_aux=True), shards)

        def add(total: PyTree, microbatch: PyTree) -> tuple[PyTree, None]:
            return jax.tree.map(jnp.add, total, gradient(trained, microbatch)), None

        num_micro, num_rows, _ = batch["target"].shape
        # The dropout masks of a row depend on its number in the update, never on the microbatch.
        row_numbers = jnp.arange(num_micro * num_rows, dtype=jnp.uint32)
        row_numbers = row_numbers.reshape(num_micro, num_rows)
        with result_casts(config, platform), matmul_precision_scope(model.matmul_precision):
            # The tree that value_and_grad returns: ((loss, other sums), gradients).
            if num_micro == 1:  # a scan over one microbatch makes the step a tenth slower
                total = gradient(trained, jax.tree.map(lambda x: x[0], (batch, row_numbers)))
            else:
                zeros = mesh_lib.zeros_of_shards((zero_sums(), trained), shards)
                total, _ = jax.lax.scan(add, zeros, (batch, row_numbers))
        (loss_sum, other_sums), grads = total
        sums = {"loss": loss_sum} | other_sums
        if shards > 1:
            grads = mesh_lib.sum_gradients(grads, model.dtype, shardings)
            sums = jax.tree.map(lambda x: x.sum(0), sums)
        grads = jax.lax.with_sharding_constraint(grads, shardings)
        mean_grads = jax.tree.map(lambda g: g / sums["tokens"], grads)
        if config.optimizer.max_grad_norm:
            norm = optax.tree.norm(mean_grads)  # as in clipping: XLA computes it once for both
        else:
            norm = global_norm(grads, shardings) / sums["tokens"]  # fewer kernels on a GPU

        new = apply_gradients(state, mean_grads, tx, parametrization)

        # A check of the parameters makes XLA compute each update twice. Where updates are bounded
        # it is not needed: a finite norm bounds the gradients and the optimizer state, and a rate
        # below LARGEST_RATE cannot overflow a parameter.
        learning_rate = rate_of_update(state.step + 1)
        if bounded:
            finite = all_finite((sums["loss"], norm)) & (jnp.abs(learning_rate) < LARGEST_RATE)
        else:
            finite = all_finite((sums["loss"], norm, parametrization.split(new.params)[0]))
        metrics = means(sums) | {
            "tokens": sums["tokens"],
            "grad_norm": norm,
            "learning_rate": learning_rate,
            "finite": finite.astype(jnp.float32),
        }
        return dataclasses.replace(where_finite(finite, new, state), step=new.step), metrics

    return train_step


def jit_train_step(
    config: Config,
    model: Transformer,
    tx: TrainOptimizer,
    parametrization: Parametrization,
    mesh: jax.sharding.Mesh,
    shardings: TrainState,
) -> jax.stages.Wrapped:
    """Jit the train step for a mesh. Each call donates the old state."""
    batch_sharding = mesh_lib.named(mesh, mesh_lib.MICRO_ROWS)
    replicated = mesh_lib.named(mesh, mesh_lib.REPLICATED)
    return jax.jit(
        make_train_step(config, model, tx, parametrization, mesh),
        donate_argnums=0,
        in_shardings=(shardings, batch_sharding),
        out_shardings=(shardings, replicated),
    )
