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
from t2t_flax.models.transformer import Transformer, products
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
    per real target token, in float32.

    The metrics are float32 scalars: loss, nll and the token metrics (all per token), tokens,
    grad_norm (of the trained parameters), learning_rate, and finite. `finite` is 1 if the loss, the
    gradient norm and the updated parameters are finite, else 0. An update that is not finite is not
    applied: only `step` and the schedule advance, because batch, dropout and rate are functions of
    the update's number.
    """
    rate = learning_rate_schedule(config)
    bounded = has_bounded_updates(config.optimizer) and not tx.average
    shards, platform = mesh_lib.batch_shards(mesh), mesh.devices.flat[0].platform
    shardings = gradient_shardings(config, model, parametrization, mesh)

    def train_step(state: TrainState, batch: Arrays) -> tuple[TrainState, Sums]:
        trained, frozen = parametrization.split(state.params)
        key = noise_key(config.seed.dropout, state.step)

        def loss(trained: Params, microbatch: tuple[Arrays, jax.Array]) -> tuple[jax.Array, Sums]:
            rows, numbers = microbatch
            params = parametrization.merge(join(trained, frozen))
            return loss_sums(config, model, params, rows, Noise(key, numbers))

        # Gradient: each device sums over its microbatches; then the devices' sums are added once.
        gradient = mesh_lib.over_shards(jax.value_and_grad(loss, has_aux=True), shards)

        def add(total: PyTree, microbatch: PyTree) -> tuple[PyTree, None]:
            return jax.tree.map(jnp.add, total, gradient(trained, microbatch)), None

        count, rows, _ = batch["target"].shape
        numbers = jnp.arange(count * rows, dtype=jnp.uint32).reshape(count, rows)
        with result_casts(config, platform), products(model.matmul_precision):
            if count == 1:  # a loop over one microbatch costs a tenth of the step
                total = gradient(trained, jax.tree.map(lambda x: x[0], (batch, numbers)))
            else:
                zeros = mesh_lib.zeros_of_shards((zero_sums(), trained), shards)
                total, _ = jax.lax.scan(add, zeros, (batch, numbers))
        (loss_sum, other_sums), grads = total
        sums = {"loss": loss_sum} | other_sums
        if shards > 1:
            grads = mesh_lib.exchange(grads, model.dtype, shardings)
            sums = jax.tree.map(lambda x: x.sum(0), sums)
        grads = jax.lax.with_sharding_constraint(grads, shardings)
        mean_grads = jax.tree.map(lambda g: g / sums["tokens"], grads)
        if config.optimizer.max_grad_norm:
            norm = optax.tree.norm(mean_grads)  # the norm that clipping uses: XLA computes it once
        else:
            norm = global_norm(grads, shardings) / sums["tokens"]

        new = apply_gradients(state, mean_grads, tx, parametrization)

        # If the norm is finite, so are all gradients, their squares and the optimizer state. If
        # updates are bounded, a finite rate is enough for the parameters: to check them, XLA would
        # compute each update twice.
        learning_rate = rate(state.step + 1)
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
    rows = mesh_lib.named(mesh, mesh_lib.MICRO_ROWS)
    replicated = mesh_lib.named(mesh, mesh_lib.REPLICATED)
    return jax.jit(
        make_train_step(config, model, tx, parametrization, mesh),
        donate_argnums=0,
        in_shardings=(shardings, rows),
        out_shardings=(shardings, replicated),
    )
