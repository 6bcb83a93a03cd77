"""One update as a pure function: gradient, optimizer, finite check."""

import contextlib
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from t2t_flax.config import Config
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.mesh import Params, PyTree
from t2t_flax.models.dense import cast_results
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.models.transformer import Transformer, products
from t2t_flax.training.losses import Sums, loss_sums, means, zero_sums
from t2t_flax.training.optimizer import (
    LARGEST_RATE,
    global_norm,
    has_bounded_updates,
    learning_rate_schedule,
    make_average,
    where_finite,
)
from t2t_flax.training.parameters import Parameters, join, parameters_of
from t2t_flax.training.parts import TrainState
from t2t_flax.training.precision import casts_results
from t2t_flax.training.train_state import run_params

Arrays = dict[str, jax.Array]


def train_step(
    config: Config,
    model: Transformer,
    tx: optax.GradientTransformation,
    mesh: jax.sharding.Mesh | None = None,
    parameters: Parameters | None = None,
) -> Callable[[TrainState, Arrays], tuple[TrainState, Sums]]:
    """Build one update as a pure function (state, batch) -> (state, metrics).

    Each array of `batch` is int32 [A, B, L]: A microbatches of B rows of L tokens. Each device adds
    up gradients and loss sums over its microbatches in float32. They are then summed over the
    devices once, and divided by the number of real target tokens. Frozen parameters have no
    gradient and do not count in grad_norm.

    The metrics are float32 scalars: loss, nll and the token metrics (all per token), tokens,
    grad_norm, learning_rate, and finite. `finite` is 1 if the loss, the gradient norm and the
    updated parameters are finite, else 0. An update that is not finite is not applied: only `step`
    and the schedule advance, because batch, dropout and rate are functions of the update's number.

    With a bounded optimizer (`has_bounded_updates`) and no average, the updated parameters are not
    checked, because XLA would then compute every update twice. Instead `finite` requires a
    learning rate below LARGEST_RATE.

    Args:
        mesh: None = one device.
        parameters: default: `parameters_of(config)`.
    """
    parameters = parameters or parameters_of(config)
    rate, average = learning_rate_schedule(config), make_average(config)
    bounded = has_bounded_updates(config.optimizer) and not average
    shards = mesh_lib.batch_shards(mesh) if mesh else 1
    structs = run_params(config, model, mesh, parameters, optimizer=True) if mesh else {}
    moments, _ = (
        parameters.split(jax.tree.map(lambda x: x.sharding, structs)) if mesh else (None, None)
    )
    casts = mesh is not None and casts_results(config, mesh.devices.flat[0].platform)
    casting = cast_results if casts else contextlib.nullcontext

    def update(state: TrainState, batch: Arrays) -> tuple[TrainState, Sums]:
        key = noise_key(config.seed.dropout, state.step)
        trained, frozen = parameters.split(state.params)

        def loss(trained: Params, part: tuple[Arrays, jax.Array]) -> tuple[jax.Array, Sums]:
            rows, numbers = part
            params = parameters.merge(join(trained, frozen))
            return loss_sums(config, model, params, rows, Noise(key, numbers))

        # Gradient: summed over microbatches on each device, then over devices.
        count, rows, _ = batch["target"].shape
        parts = batch, jnp.arange(count * rows, dtype=jnp.uint32).reshape(count, rows)
        gradient = mesh_lib.over_shards(jax.value_and_grad(loss, has_aux=True), shards)

        def add(total: PyTree, part: PyTree) -> tuple[PyTree, None]:
            return jax.tree.map(jnp.add, total, gradient(trained, part)), None

        with casting(), products(model.matmul_precision):  # forward and backward
            if count == 1:  # a loop over one microbatch costs a tenth of the step
                total = gradient(trained, jax.tree.map(lambda x: x[0], parts))
            else:
                zeros = mesh_lib.zeros_of_shards((zero_sums(), trained), shards)
                total, _ = jax.lax.scan(add, zeros, parts)
        (value, others), grads = total
        sums = {"loss": value} | others
        if shards > 1:
            grads = mesh_lib.exchange(grads, model.dtype, moments)
            sums = jax.tree.map(lambda x: x.sum(0), sums)
        summed = grads if moments is None else jax.lax.with_sharding_constraint(grads, moments)
        grads = jax.tree.map(lambda g: g / sums["tokens"], summed)
        if config.optimizer.max_grad_norm:
            norm = optax.tree.norm(grads)  # the norm that clipping uses: XLA computes it once
        else:
            norm = global_norm(summed, moments) / sums["tokens"]

        # Optimizer, then the average of the parameters if the run has one.
        updates, opt_state = tx.update(grads, state.opt_state, trained)
        params = optax.apply_updates(trained, updates)
        old_ema, frozen_ema = parameters.split(state.ema) if average else (None, {})
        ema = average(old_ema, params, opt_state) if average else None

        # If the norm is finite, so are all gradients, their squares and the optimizer state. The
        # optimizer state therefore needs no check.
        learning_rate = rate(state.step + 1)
        checked = (sums["loss"], norm) if bounded else (sums["loss"], norm, params)
        finite = functools.reduce(
            jnp.logical_and, (jnp.isfinite(x).all() for x in jax.tree.leaves(checked))
        )
        finite = finite & (jnp.abs(learning_rate) < LARGEST_RATE) if bounded else finite
        new, old = (params, ema, opt_state), (trained, old_ema, state.opt_state)
        params, ema, opt_state = where_finite(finite, new, old)
        metrics = means(sums) | {
            "tokens": sums["tokens"],
            "grad_norm": norm,
            "learning_rate": learning_rate,
        }
        metrics["finite"] = finite.astype(jnp.float32)
        ema = join(ema, frozen_ema) if average else None
        return TrainState(state.step + 1, join(params, frozen), opt_state, ema), metrics

    return update


def make_train_step(
    config: Config,
    model: Transformer,
    tx: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
    shardings: TrainState,
    parameters: Parameters | None = None,
):
    """Jit `train_step` for a mesh. Each call donates the old state."""
    replicated, rows = (
        mesh_lib.named(mesh, spec) for spec in (mesh_lib.REPLICATED, mesh_lib.MICRO_ROWS)
    )
    step = train_step(config, model, tx, mesh, parameters)
    return jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(shardings, rows),
        out_shardings=(shardings, replicated),
    )
