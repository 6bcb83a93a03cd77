"""One update as a pure function: gradient, optimizer, check for finite numbers."""

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
    """Return the pure function (state, batch) -> (state, metrics) for a mesh; None = one device.

    batch: int32 [A, B, L] arrays. Gradients and sums are added up over the A microbatches on each device, in float32, then over
    the devices, once, and divided by the real target tokens of the update. Frozen parameters have no gradient, also not in
    grad_norm. metrics: float32 scalars: loss, nll and token metrics per token, tokens, grad_norm, learning_rate, finite.

    finite: 1, or 0 where loss, gradient norm or updated parameters are not finite. Such an update is not applied: `step`
    and the schedule advance, so that batch, dropout and rate stay functions of the update's number; all else is unchanged.
    With a bounded optimizer and no average, `learning_rate < LARGEST_RATE` replaces the check of the updated parameters:
    XLA would compute every update twice for it.
    """
    parameters = parameters or parameters_of(config)
    rate, average = learning_rate_schedule(config), make_average(config)
    bounded = has_bounded_updates(config.optimizer) and not average
    shards = mesh_lib.batch_shards(mesh) if mesh else 1
    structs = run_params(config, model, mesh, parameters, optimizer=True) if mesh else {}
    moments, _ = parameters.split(jax.tree.map(lambda x: x.sharding, structs)) if mesh else (None, None)
    casts = mesh is not None and casts_results(config, mesh.devices.flat[0].platform)
    casting = cast_results if casts else contextlib.nullcontext

    def update(state: TrainState, batch: Arrays) -> tuple[TrainState, Sums]:
        key = noise_key(config.seed.dropout, state.step)
        trained, frozen = parameters.split(state.params)

        def loss(trained: Params, part: tuple[Arrays, jax.Array]) -> tuple[jax.Array, Sums]:
            rows, numbers = part
            params = parameters.merge(join(trained, frozen))
            return loss_sums(config, model, params, rows, Noise(key, numbers))

        # The gradient: over microbatches on each device, then over devices.
        count, rows, _ = batch["target"].shape
        parts = batch, jnp.arange(count * rows, dtype=jnp.uint32).reshape(count, rows)
        gradient = mesh_lib.over_shards(jax.value_and_grad(loss, has_aux=True), shards)

        def add(total: PyTree, part: PyTree) -> tuple[PyTree, None]:
            return jax.tree.map(jnp.add, total, gradient(trained, part)), None

        with casting(), products(model.matmul_precision):  # also of the backward pass
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
        grads = grads if moments is None else jax.lax.with_sharding_constraint(grads, moments)
        norm = global_norm(grads, moments) / sums["tokens"]
        grads = jax.tree.map(lambda g: g / sums["tokens"], grads)
        if config.optimizer.max_grad_norm:
            norm = optax.tree.norm(grads)  # the one that clips, computed once for both

        # The optimizer.
        updates, opt_state = tx.update(grads, state.opt_state, trained)
        params = optax.apply_updates(trained, updates)
        old_ema, frozen_ema = parameters.split(state.ema) if average else (None, {})
        ema = average(old_ema, params, opt_state) if average else None

        # A finite norm bounds every gradient and its square, and with them the optimizer state, which needs no check.
        learning_rate = rate(state.step + 1)
        checked = (sums["loss"], norm) if bounded else (sums["loss"], norm, params)
        finite = functools.reduce(jnp.logical_and, (jnp.isfinite(x).all() for x in jax.tree.leaves(checked)))
        finite = finite & (jnp.abs(learning_rate) < LARGEST_RATE) if bounded else finite
        new, old = (params, ema, opt_state), (trained, old_ema, state.opt_state)
        params, ema, opt_state = where_finite(finite, new, old)
        metrics = means(sums) | {"tokens": sums["tokens"], "grad_norm": norm, "learning_rate": learning_rate}
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
    """`train_step` jitted on the mesh; the state is donated."""
    replicated, rows = (mesh_lib.named(mesh, spec) for spec in (mesh_lib.REPLICATED, mesh_lib.MICRO_ROWS))
    step = train_step(config, model, tx, mesh, parameters)
    return jax.jit(step, donate_argnums=0, in_shardings=(shardings, rows), out_shardings=(shardings, replicated))
