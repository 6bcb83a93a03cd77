"""Schedule-free AdamW (Defazio et al. 2024), a row of `registry.AVERAGING`. The parameters that are trained are y, where the
gradient is taken; those that are evaluated are x, the average of z, which AdamW without momentum moves:

    z <- z - rate (g / (sqrt(v) + eps) + weight_decay y)      x <- (1 - c) x + c z      y <- (1 - b1) z + b1 x

c is the share of rate^2 in its sum so far, of the largest rate up to then. The optimizer's state is v and z, the state's `ema` x.
"""

from typing import Any

import jax
import optax
from optax.contrib import ScheduleFreeState

from t2t_flax.config import Config
from t2t_flax.training.optimizer import Schedule


def direction(config: Config) -> optax.GradientTransformation:
    """Adam's without momentum, whose place x takes."""
    o = config.optimizer
    return optax.scale_by_rms(decay=o.b2, eps=o.eps, eps_in_sqrt=False, bias_correction=True)


def around(config: Config, optimizer: optax.GradientTransformation, rate: Schedule) -> optax.GradientTransformation:
    """The updates of y, by an optimizer that moves z. rate: of update 1, 2, ..."""
    return optax.contrib.schedule_free(optimizer, rate, b1=config.optimizer.b1)


def average(old: Any, params: Any, opt_state: Any) -> Any:
    """x, from y and z. The optimizer's state may be within that of another transformation."""
    is_state = lambda node: isinstance(node, ScheduleFreeState)  # noqa: E731
    state = next(filter(is_state, jax.tree.leaves(opt_state, is_leaf=is_state)))
    return optax.contrib.schedule_free_eval_params(state, params)
