"""Schedules that decay to a final rate at a given update.

They are rows of `registry.SCHEDULES`.
"""

import jax
import jax.numpy as jnp
import optax

from t2t_flax.config import Config
from t2t_flax.extensions.optimizers import Optimizers
from t2t_flax.training.optimizer import Schedule, warm_up


def cosine(config: Config) -> Schedule:
    """Half a cosine from peak_lr after the warm-up to min_lr at t = decay_steps.

    See Loshchilov and Hutter 2017.
    """
    return _decay(config, optax.cosine_decay_schedule(1.0, 1), config.optimizer.warmup_steps)


def linear(config: Config) -> Schedule:
    """Linear decay from peak_lr after the warm-up to min_lr at t = decay_steps."""
    return _decay(config, optax.linear_schedule(1.0, 0.0, 1), config.optimizer.warmup_steps)


def wsd(config: Config) -> Schedule:
    """Constant peak_lr until cooldown_steps before decay_steps, then a line to min_lr.

    See Hu et al. 2024, MiniCPM.
    """
    keys = Optimizers.of(config)
    return _decay(
        config, optax.linear_schedule(1.0, 0.0, 1), keys.decay_steps - keys.cooldown_steps
    )


def _decay(config: Config, shape: optax.Schedule, first: int | jax.Array) -> Schedule:
    """Return a schedule that decays from peak_lr after t = first.

    Between the warm-up and t = first it is peak_lr; then it follows `shape` (1 at 0, 0 from 1 on)
    to min_lr at t = decay_steps.
    """
    o, keys = config.optimizer, Optimizers.of(config)

    def rate(t):
        share = shape(jnp.maximum(t - first, 0) / (keys.decay_steps - first))
        return o.peak_lr * share + keys.min_lr * (1 - share)  # exact at both ends

    return warm_up(o, rate)
