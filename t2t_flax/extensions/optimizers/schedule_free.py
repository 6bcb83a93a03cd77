"""Schedule-free AdamW (Defazio et al. 2024).

The trained parameters are y, where the gradient is taken. The evaluated ones are x, the average of
z, which AdamW without momentum moves:

    z <- z - rate (g / (sqrt(v) + eps) + weight_decay y)
    x <- (1 - c) x + c z
    y <- (1 - b1) z + b1 x

c is the share of rate^2 in its sum so far, of the largest rate of an applied update up to then. The
optimizer's state is v and z, the state's `ema` x.
"""

from typing import Any

import jax
import optax
from optax.contrib import ScheduleFreeState

from t2t_flax.config import Config
from t2t_flax.training.optimizer import AveragingDirection, learning_rate_schedule


def schedule_free_adamw(config: Config) -> "ScheduleFree":
    """Return Adam's direction without momentum; the average x takes momentum's place."""
    o = config.optimizer
    return ScheduleFree(
        *optax.scale_by_rms(decay=o.b2, eps=o.eps, eps_in_sqrt=False, bias_correction=True)
    )


class ScheduleFree(AveragingDirection):
    """Direction of z."""

    def wrap(
        self, config: Config, optimizer: optax.GradientTransformation
    ) -> optax.GradientTransformation:
        """Return the optimizer of y, around one that moves z."""
        tx = optax.contrib.schedule_free(
            optimizer, learning_rate_schedule(config), b1=config.optimizer.b1
        )

        def update(grads, state, params):
            # The schedule's counter includes skipped updates (`training.train_step`), optax's
            # counter does not.
            count = _find(optax.ScaleByScheduleState, state.base_optimizer_state).count
            return tx.update(grads, state._replace(step_count=count + 1), params)

        return optax.GradientTransformation(tx.init, update)

    def average(self, old: Any, params: Any, opt_state: Any) -> Any:
        """Return x from y and z.

        The optimizer's state may be inside another transformation's state.
        """
        return optax.contrib.schedule_free_eval_params(_find(ScheduleFreeState, opt_state), params)


def _find(kind: type, opt_state: Any) -> Any:
    is_kind = lambda node: isinstance(node, kind)  # noqa: E731
    return next(filter(is_kind, jax.tree.leaves(opt_state, is_leaf=is_kind)))
