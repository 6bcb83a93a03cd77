"""One update, and the loss of a validation batch, as pure functions jitted on the mesh."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from t2t_flax.config import Config
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.models.transformer import Transformer, products
from t2t_flax.training.chunked_loss import chunked_sums
from t2t_flax.training.losses import smoothed_cross_entropy
from t2t_flax.training.schedules import learning_rate_schedule
from t2t_flax.training.train_state import TrainState, parameter_shardings


def loss_sums(
    config: Config,
    model: Transformer,
    params: Any,
    batch: dict[str, jax.Array],
    noise: Noise | None,
    shards: int = 1,
):
    """(smoothed loss sum, (nll sum, real target tokens)) of rows [B, L]; float32. `shards`: of the batch axis."""

    def sums(params, hidden, targets, weights):
        return smoothed_cross_entropy(
            model.apply({"params": params}, hidden, method="logits"),
            targets,
            weights,
            label_smoothing=config.loss.label_smoothing,
            label_smoothing_over=config.loss.label_smoothing_over,
            vocab_size=model.target_vocab,
        )

    hidden = model.apply({"params": params}, batch, noise, method="hidden")
    weights = (batch["target_segments"] > 0).astype(jnp.float32)
    output = {name: params[name] for name in model.output_params}
    told = output, hidden, batch["target"], weights
    chunk = config.loss.logits_chunk_size
    loss, nll = chunked_sums(sums, *told, chunk=chunk, shards=shards) if chunk else sums(*told)
    return loss, (nll, weights.sum())


def train_step(
    config: Config, model: Transformer, tx: optax.GradientTransformation, *, shards: int = 1, moments: Any = None
) -> Callable[[TrainState, dict[str, jax.Array]], tuple[TrainState, dict[str, jax.Array]]]:
    """(state, batch) -> (state, metrics), a pure function.

    batch: int32 [A, B, L] arrays. Gradients, losses and tokens are summed over the A microbatches and divided once by
    the real target tokens of the update. metrics: float32 scalars loss, nll, tokens, grad_norm, learning_rate, finite.
    moments: where the optimizer state lies; with ZeRO-1 the gradients go there before the parameters are whole again.

    finite: 1, or 0 where loss, gradient norm or updated parameters are not finite. Such an update is not applied: `step`
    and the schedule advance, so that batch, dropout and rate remain functions of the update's number; all else is kept.
    """
    rate = learning_rate_schedule(config.optimizer, config.model.d_model)

    def step(state: TrainState, batch: dict[str, jax.Array]):
        key = noise_key(config.seed.dropout, state.step)
        count, rows, _ = batch["target"].shape

        def micro(part, a):
            noise = Noise(key, (a * rows + jnp.arange(rows)).astype(jnp.uint32))
            loss = lambda params: loss_sums(config, model, params, part, noise, shards)  # noqa: E731
            with products(model.matmul_precision):  # a backward pass of its own (custom_vjp) is traced here
                (loss, (nll, tokens)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
            return grads, loss, nll, tokens

        if count == 1:  # a loop of one costs a tenth of the step
            grads, loss, nll, tokens = micro(jax.tree.map(lambda x: x[0], batch), 0)
        else:
            zeros = (jax.tree.map(jnp.zeros_like, state.params), *(jnp.zeros(()) for _ in range(3)))
            add = lambda sums, xs: (jax.tree.map(jnp.add, sums, micro(*xs)), None)  # noqa: E731
            (grads, loss, nll, tokens), _ = jax.lax.scan(add, zeros, (batch, jnp.arange(count)))
        grads = jax.tree.map(lambda g: g / tokens, grads)
        grads = grads if moments is None else jax.lax.with_sharding_constraint(grads, moments)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        decay = config.optimizer.ema_decay
        ema = jax.tree.map(lambda e, p: decay * e + (1 - decay) * p, state.ema, params) if decay else None
        norm = optax.tree.norm(grads)
        # A finite norm bounds every gradient and its square, and with them Adam's moments: they need no look of their own.
        finite = functools.reduce(
            jnp.logical_and, (jnp.isfinite(x).all() for x in jax.tree.leaves((loss, norm, params)))
        )
        params, ema, opt_state = (
            _kept_unless(finite, new, old)
            for new, old in ((params, state.params), (ema, state.ema), (opt_state, state.opt_state))
        )
        metrics = {
            "loss": loss / tokens,
            "nll": nll / tokens,
            "tokens": tokens,
            "grad_norm": norm,
            "learning_rate": rate(state.step + 1),
            "finite": finite.astype(jnp.float32),
        }
        return TrainState(state.step + 1, params, opt_state, ema), metrics

    return step


def _kept_unless(finite: jax.Array, new: Any, old: Any) -> Any:
    """`new` where `finite`, else `old`; the schedule's counter is always new, for it counts updates, applied or not."""
    counts = lambda x: isinstance(x, optax.ScaleByScheduleState)  # noqa: E731
    choose = lambda n, o: n if counts(n) else jnp.where(finite, n, o)  # noqa: E731
    return jax.tree.map(choose, new, old, is_leaf=counts)


def make_train_step(config: Config, model: Transformer, tx: optax.GradientTransformation, mesh, shardings: TrainState):
    """`train_step` jitted on the mesh; the state is donated."""
    moments = parameter_shardings(config, model, mesh, optimizer=True)
    step = train_step(config, model, tx, shards=mesh_lib.batch_shards(mesh), moments=moments)
    replicated = mesh_lib.named(mesh, mesh_lib.REPLICATED)
    rows = mesh_lib.named(mesh, mesh_lib.MICRO_ROWS)
    return jax.jit(step, donate_argnums=0, in_shardings=(shardings, rows), out_shardings=(shardings, replicated))


def make_eval_step(config: Config, model: Transformer, mesh, param_shardings):
    """jitted (params, rows [B, L]) -> (nll sum, smoothed loss sum, real target tokens), without dropout."""

    def step(params, batch):
        loss, (nll, tokens) = loss_sums(config, model, params, batch, None, mesh_lib.batch_shards(mesh))
        return nll, loss, tokens

    replicated = mesh_lib.named(mesh, mesh_lib.REPLICATED)
    rows = mesh_lib.named(mesh, mesh_lib.ROWS)
    return jax.jit(step, in_shardings=(param_shardings, rows), out_shardings=replicated)
