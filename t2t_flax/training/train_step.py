"""One update, and the loss of a validation batch, as pure functions jitted on the mesh."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from t2t_flax.config import Config
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.models.dense import cast_results
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.models.transformer import Transformer, products
from t2t_flax.training.hooks import Hook
from t2t_flax.training.losses import Sums, means, output_sums, sums_without_gradient, token_sums, zero_sums
from t2t_flax.training.optimizer import has_bounded_updates, learning_rate_schedule, make_average
from t2t_flax.training.precision import casts_results
from t2t_flax.training.train_state import TrainState, join, parameters_of, run_params

_LARGEST_RATE = 1e32  # a million updates of a few times this are finite


def loss_sums(
    config: Config, model: Transformer, params: Any, batch: dict[str, jax.Array], noise: Noise | None
) -> tuple[jax.Array, Sums]:
    """(smoothed loss, all other sums) of rows [B, L]; float32."""
    hidden: Any = model.apply({"params": params}, batch, noise, method="hidden")
    if config.model.logit_scale == "rsqrt_d":
        hidden = (hidden.astype(jnp.float32) * config.model.d_model**-0.5).astype(hidden.dtype)
    sums, weights = _sums_and_weights(config, model, batch)
    table, bias = params[model.output_params[0]]["table"], params.get("output_bias")
    loss, others = output_sums(sums, hidden, table, bias, batch["target"], weights, chunk=model.logits_chunk)
    return loss, others | {"tokens": weights.sum()}


def validation_sums(config: Config, model: Transformer, params: Any, batch: dict[str, jax.Array]) -> Sums:
    """All sums of rows [B, L] without dropout, the smoothed "loss" among them, from float32 logits."""
    hidden: Any = model.apply({"params": params}, batch, method="hidden")
    logits: Any = functools.partial(model.apply, {"params": params}, method="logits")
    sums, weights = _sums_and_weights(config, model, batch)
    targets, chunk = batch["target"], model.logits_chunk
    loss, others = sums_without_gradient(sums, logits, hidden, targets, weights, chunk=chunk)
    return {"loss": loss} | others | {"tokens": weights.sum()}


def _sums_and_weights(config: Config, model: Transformer, batch: dict[str, jax.Array]):
    sums = functools.partial(token_sums, config=config.loss, vocab_size=model.target_vocab)
    return sums, (batch["target_segments"] > 0).astype(jnp.float32)


def train_step(
    config: Config,
    model: Transformer,
    tx: optax.GradientTransformation,
    *,
    shards: int = 1,
    moments: Any = None,
    hooks: Sequence[Hook] = (),
    cast: bool = False,
) -> Callable[[TrainState, dict[str, jax.Array]], tuple[TrainState, dict[str, jax.Array]]]:
    """(state, batch) -> (state, metrics), a pure function.

    batch: int32 [A, B, L] arrays; B is a multiple of `shards`, the devices that divide it. Gradients and sums are added up
    over the A microbatches on each device, in float32, then over the devices, once, and divided by the real target tokens of
    the update. With bfloat16 products the gradients of matrices are rounded to bfloat16 for that, where there are several
    devices. metrics: float32 scalars: loss, nll and token metrics per token, tokens, grad_norm, learning_rate, finite. Frozen
    parameters have no gradient, also not in grad_norm. moments: shardings of the optimizer's moments of the trained
    parameters; the gradients are divided like them. hooks: what they measure joins the metrics. cast: whether products
    are traced in `models.dense.cast_results`.

    finite: 1, or 0 where loss, gradient norm or updated parameters are not finite. Such an update is not applied: `step`
    and the schedule advance, so that batch, dropout and rate stay functions of the update's number; all else is unchanged.
    With a bounded optimizer and no average, `learning_rate < _LARGEST_RATE` replaces the check of the updated
    parameters, for which XLA would compute every update twice.
    """
    parameters, rate, average = parameters_of(config), learning_rate_schedule(config), make_average(config)
    bounded = has_bounded_updates(config.optimizer) and not average

    def step(state: TrainState, batch: dict[str, jax.Array]):
        key = noise_key(config.seed.dropout, state.step)
        count, rows, _ = batch["target"].shape
        trained, frozen = parameters.split(state.params)

        def micro(trained, part):
            rows, numbers = part

            def loss(trained):
                return loss_sums(config, model, parameters.merge(join(trained, frozen)), rows, Noise(key, numbers))

            context = cast_results() if cast else contextlib.nullcontext()
            with context, products(model.matmul_precision):  # its custom_vjp is traced here
                (loss, others), grads = jax.value_and_grad(loss, has_aux=True)(trained)
            return grads, {"loss": loss} | others

        parts = batch, jnp.arange(count * rows, dtype=jnp.uint32).reshape(count, rows)
        zeros = lambda: mesh_lib.zeros_of_shards((trained, zero_sums()), shards)  # noqa: E731
        grads, sums = accumulate(mesh_lib.over_shards(micro, shards), trained, parts, zeros)
        if shards > 1:
            grads = exchange(grads, model.dtype, moments)
            sums = jax.tree.map(lambda x: x.sum(0), sums)
        loss, tokens = sums["loss"], sums["tokens"]
        old_ema, frozen_ema = parameters.split(state.ema) if average else (None, {})
        grads = jax.tree.map(lambda g: g / tokens, grads)
        grads = grads if moments is None else jax.lax.with_sharding_constraint(grads, moments)
        updates, opt_state = tx.update(grads, state.opt_state, trained)
        params = optax.apply_updates(trained, updates)
        ema = average(old_ema, params, opt_state) if average else None
        norm = optax.tree.norm(grads)
        learning_rate = rate(state.step + 1)
        # A finite norm bounds every gradient and its square, and with them the optimizer state, which needs no check.
        checked = (loss, norm) if bounded else (loss, norm, params)
        finite = functools.reduce(jnp.logical_and, (jnp.isfinite(x).all() for x in jax.tree.leaves(checked)))
        finite = finite & (jnp.abs(learning_rate) < _LARGEST_RATE) if bounded else finite
        params, ema, opt_state = (
            _where_finite(finite, new, old)
            for new, old in ((params, trained), (ema, old_ema), (opt_state, state.opt_state))
        )
        metrics = {name: x for hook in hooks for name, x in hook.measure(trained, grads).items()} | means(sums)
        metrics |= {
            "tokens": tokens,
            "grad_norm": norm,
            "learning_rate": learning_rate,
            "finite": finite.astype(jnp.float32),
        }
        ema = join(ema, frozen_ema) if average else None
        return TrainState(state.step + 1, join(params, frozen), opt_state, ema), metrics

    return step


def accumulate(function: Callable[[Any, Any], Any], params: Any, parts: Any, zeros: Callable[[], Any]) -> Any:
    """Sum `function(params, rows)` over the microbatches [A, B, ...] in `parts`, one after the other.

    Args:
        zeros: initial sums.
    """
    if len(jax.tree.leaves(parts)[0]) == 1:  # a loop over one microbatch costs a tenth of the step
        return function(params, jax.tree.map(lambda x: x[0], parts))
    add = lambda total, rows: (jax.tree.map(jnp.add, total, function(params, rows)), None)  # noqa: E731
    return jax.lax.scan(add, zeros(), parts)[0]


def exchange(grads: Any, dtype: jnp.dtype, shardings: Any = None) -> Any:
    """Sum gradients [shards, ...] over the shards of a batch; matrices travel in `dtype`, vectors in float32.

    Args:
        shardings: shardings of the sums.
    """

    def total(g, sharding=None):
        return mesh_lib.sum_over_shards(g, dtype if g.ndim > 2 else g.dtype, sharding)

    return jax.tree.map(total, grads, *(() if shardings is None else (shardings,)))


def _where_finite(finite: jax.Array, new: Any, old: Any) -> Any:
    """`new` if `finite`, else `old`; always the new counter of the schedule, which counts updates, applied or not."""
    is_counter = lambda x: isinstance(x, optax.ScaleByScheduleState)  # noqa: E731
    choose = lambda n, o: n if is_counter(n) else jnp.where(finite, n, o)  # noqa: E731
    return jax.tree.map(choose, new, old, is_leaf=is_counter)


def make_train_step(
    config: Config,
    model: Transformer,
    tx: optax.GradientTransformation,
    mesh,
    shardings: TrainState,
    hooks: Sequence[Hook] = (),
):
    """`train_step` jitted on the mesh; the state is donated."""
    shardings_of = jax.tree.map(lambda x: x.sharding, run_params(config, model, mesh, optimizer=True))
    moments, _ = parameters_of(config).split(shardings_of)
    cast = casts_results(config, mesh.devices.flat[0].platform)
    shards = mesh_lib.batch_shards(mesh)
    step = train_step(config, model, tx, shards=shards, moments=moments, hooks=hooks, cast=cast)
    replicated = mesh_lib.named(mesh, mesh_lib.REPLICATED)
    rows = mesh_lib.named(mesh, mesh_lib.MICRO_ROWS)
    return jax.jit(step, donate_argnums=0, in_shardings=(shardings, rows), out_shardings=(shardings, replicated))


def make_eval_step(config: Config, model: Transformer, mesh, param_shardings):
    """jitted (params, rows [B, L]) -> the sums, "loss" among them, without dropout."""

    step = functools.partial(validation_sums, config, model)
    replicated = mesh_lib.named(mesh, mesh_lib.REPLICATED)
    rows = mesh_lib.named(mesh, mesh_lib.ROWS)
    return jax.jit(step, in_shardings=(param_shardings, rows), out_shardings=replicated)
