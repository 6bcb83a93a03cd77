"""Adam and the learning rate as a function of the update's number (5.3)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from t2t_flax.config import Config, Optimizer


def schedule(config: Optimizer, d_model: int) -> Callable[[jax.Array], jax.Array]:
    """The rate of update u = 1, 2, ..., by formulas in t = u - 1 + schedule_first_step.

    noam: lr_scale * d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5) (5.3, equation 3). inverse_sqrt: from warmup_init
    linearly to peak_lr at t = warmup_steps, then peak_lr * sqrt(warmup_steps / t). constant: peak_lr after the warm-up.
    """
    if config.schedule not in ("noam", "inverse_sqrt", "constant"):
        raise ValueError(f"unknown schedule {config.schedule!r}")
    warmup = config.warmup_steps

    def rate(update):
        t = jnp.asarray(update, jnp.float32) - 1 + config.schedule_first_step
        if config.schedule == "noam":
            return config.lr_scale * d_model**-0.5 * jnp.minimum(t**-0.5, t * warmup**-1.5)
        warm = config.warmup_init + (config.peak_lr - config.warmup_init) * t / warmup
        after = config.peak_lr * jnp.sqrt(warmup / t) if config.schedule == "inverse_sqrt" else config.peak_lr
        return jnp.where(t < warmup, warm, after)

    return rate


def decayed(params: Any) -> Any:
    """True for each parameter that weight decay takes: matrices and tables, no vector, bias or norm, whatever its shape
    (a bias of attention is [heads, width]).
    """

    def is_matrix(path, leaf):
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        return leaf.ndim > 1 and not names[-1].endswith(("bias", "scale"))

    return jax.tree_util.tree_map_with_path(is_matrix, params)


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Adam with the schedule; clipping before it and decoupled decay of matrices after it, where asked for.

    The tree of the optimizer state does not depend on `max_grad_norm`, which may change when a run is resumed.
    """
    o = config.optimizer
    rate = schedule(o, config.model.d_model)
    adam = optax.scale_by_adam(b1=o.b1, b2=o.b2, eps=o.eps)
    parts = [_clip_before(adam, o.max_grad_norm) if o.max_grad_norm else adam]
    if o.weight_decay:
        parts.append(optax.add_decayed_weights(o.weight_decay, mask=decayed))
    parts.append(optax.scale_by_learning_rate(lambda count: rate(count + 1)))
    return optax.chain(*parts)


def _clip_before(inner: optax.GradientTransformation, norm: float) -> optax.GradientTransformation:
    """`inner` on gradients clipped to a global norm; the state is `inner`'s own."""
    clip = optax.clip_by_global_norm(norm)

    def update(grads, state, params=None):
        clipped, _ = clip.update(grads, optax.EmptyState())
        return inner.update(clipped, state, params)

    return optax.GradientTransformation(inner.init, update)
