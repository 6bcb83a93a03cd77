"""Learning-rate schedules: the rate of an update as a function of its number (5.3); rows of `registry.SCHEDULES`.

The numbers of the config may be traced arrays: runs that are trained together differ in them. The keys that each reads are in
`config/optimizer_keys.py`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from t2t_flax.config import Optimizer
from t2t_flax.registry import SCHEDULES

Rate = Callable[[jax.Array], jax.Array]
"""t -> rate, float32; t = update - 1 + schedule_first_step."""


def noam(o: Optimizer, d_model: int) -> Rate:
    """lr_scale * d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5) (5.3, equation 3)."""
    return lambda t: o.lr_scale * d_model**-0.5 * jnp.minimum(t**-0.5, t * o.warmup_steps**-1.5)


def inverse_sqrt(o: Optimizer, d_model: int) -> Rate:
    """peak_lr * sqrt(warmup_steps / t) after the warm-up."""
    return warm_up(o, lambda t: o.peak_lr * jnp.sqrt(o.warmup_steps / t))


def constant(o: Optimizer, d_model: int) -> Rate:
    """peak_lr after the warm-up."""
    return warm_up(o, lambda t: jnp.asarray(o.peak_lr))


def cosine(o: Optimizer, d_model: int) -> Rate:
    """Half a cosine from peak_lr after the warm-up to min_lr at t = decay_steps (Loshchilov and Hutter 2017)."""
    return decay(o, optax.cosine_decay_schedule(1.0, 1), o.warmup_steps)


def linear(o: Optimizer, d_model: int) -> Rate:
    """A line from peak_lr after the warm-up to min_lr at t = decay_steps."""
    return decay(o, optax.linear_schedule(1.0, 0.0, 1), o.warmup_steps)


def wsd(o: Optimizer, d_model: int) -> Rate:
    """peak_lr until cooldown_steps before decay_steps, then a line to min_lr (Hu et al. 2024, MiniCPM)."""
    return decay(o, optax.linear_schedule(1.0, 0.0, 1), o.decay_steps - o.cooldown_steps)


def learning_rate_schedule(o: Optimizer, d_model: int) -> Rate:
    """update 1, 2, ... -> its rate, float32. Raises ValueError for an unknown schedule."""
    rate = SCHEDULES.load(o.schedule)(o, d_model)
    return lambda update: rate(jnp.asarray(update, jnp.float32) - 1 + o.schedule_first_step)


def warm_up(o: Optimizer, rate: Rate) -> Rate:
    """Linear from warmup_init at t = 0 to peak_lr at t = warmup_steps, then `rate`."""

    def warm(t):
        return o.warmup_init + (o.peak_lr - o.warmup_init) * t / o.warmup_steps

    return lambda t: jnp.where(t < o.warmup_steps, warm(t), rate(t))


def decay(o: Optimizer, shape: optax.Schedule, first: int | jax.Array) -> Rate:
    """After the warm-up: peak_lr up to t = first, then along `shape` (1 at 0, 0 from 1 on) to min_lr at t = decay_steps."""

    def rate(t):
        share = shape(jnp.maximum(t - first, 0) / (o.decay_steps - first))
        return o.peak_lr * share + o.min_lr * (1 - share)  # exact at both ends

    return warm_up(o, rate)
