"""Optimizer and learning rate (5.3).

Adam and the schedules are functions of the config, and rows of `registry.OPTIMIZERS` and
`registry.SCHEDULES`. A row of OPTIMIZERS computes a direction: the update before weight decay and
the learning rate.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from t2t_flax.config import Config, Optimizer
from t2t_flax.distributed.mesh import Params, PyTree
from t2t_flax.registry import OPTIMIZERS, SCHEDULES
from t2t_flax.training.parametrization import Parametrization, Scales, join, path_names, scaled
from t2t_flax.training.parts import TrainOptimizer, TrainState

LARGEST_RATE = 1e32
"""Limit of the rate: a million updates a few times this large do not overflow a parameter."""
Schedule = Callable[[jax.Array | int], jax.Array]
"""Function t -> float32 learning rate, where t = update - 1 + schedule_first_step."""


class AveragingDirection(optax.GradientTransformation):
    """Direction of an optimizer that brings its own average of the parameters."""

    def wrap(
        self, config: Config, optimizer: optax.GradientTransformation
    ) -> optax.GradientTransformation:
        """Wrap the optimizer of the trained parameters that has this direction."""
        raise NotImplementedError

    def average(self, old: PyTree, params: PyTree, opt_state: PyTree) -> PyTree:
        """Return the new average, see `TrainOptimizer`."""
        raise NotImplementedError


def make_optimizer(config: Config, parametrization: Parametrization) -> TrainOptimizer:
    """Make the optimizer of a config.

    It chains clipping by the global norm, the direction, decoupled weight decay, and the learning
    rate. The tree of its state does not depend on `max_grad_norm`, which may change when a run is
    resumed. Raises ValueError for an unknown optimizer or schedule.
    """
    o, rate, scales = config.optimizer, learning_rate_schedule(config), parametrization.scales
    direction = OPTIMIZERS.load(o.name)(config)
    parts = [
        _clip(o.max_grad_norm) if o.max_grad_norm else optax.identity(),
        _scaled(direction, scales) if scales else direction,
    ]
    if o.weight_decay:
        parts.append(optax.add_decayed_weights(o.weight_decay, mask=decayed))
    parts.append(optax.scale_by_learning_rate(lambda count: rate(count + 1)))
    optimizer = optax.chain(*parts)
    average = _moving_average(o.ema_decay) if o.ema_decay else None
    if isinstance(direction, AveragingDirection):
        optimizer, average = direction.wrap(config, optimizer), direction.average
    return TrainOptimizer(optimizer.init, optimizer.update, average)


def _moving_average(decay: float) -> Callable[[PyTree, PyTree, PyTree], PyTree]:
    def average(old, params, opt_state):
        return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, old, params)

    return average


def _scaled(
    direction: optax.GradientTransformation, scales: Callable[[PyTree], Scales]
) -> optax.GradientTransformation:
    """Scale the gradients before a direction, and the updates after it."""

    def update(grads, state, params=None):
        table = scales(grads)
        updates, state = direction.update(scaled(grads, table, "gradient"), state, params)
        return scaled(updates, table, "rate"), state

    return optax.GradientTransformation(direction.init, update)


def apply_gradients(
    state: TrainState, grads: Params, tx: TrainOptimizer, parametrization: Parametrization
) -> TrainState:
    """Return the state after an update of the trained parameters and of their average."""
    trained, frozen = parametrization.split(state.params)
    updates, opt_state = tx.update(grads, state.opt_state, trained)
    trained = optax.apply_updates(trained, updates)
    ema = None
    if tx.average:
        old, frozen_ema = parametrization.split(state.ema)
        ema = join(tx.average(old, trained, opt_state), frozen_ema)
    return TrainState(state.step + 1, join(trained, frozen), opt_state, ema)


def adam(config: Config) -> optax.GradientTransformation:
    """Adam (Kingma and Ba 2015), with the constants of section 5.3 by default."""
    o = config.optimizer
    return optax.scale_by_adam(b1=o.b1, b2=o.b2, eps=o.eps)


def has_bounded_updates(o: Optimizer) -> bool:
    """Return whether finite gradients bound each update by a multiple of the rate.

    By Cauchy-Schwarz, Adam's m / sqrt(v) before bias correction is at most
    (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2)). Weight decay has no bound: it moves a parameter by a
    multiple of itself.
    """
    return o.name == "adam" and not o.weight_decay and o.b1**2 < o.b2


def all_finite(tree: PyTree) -> jax.Array:
    """Return whether all numbers in a tree are finite, as a scalar."""
    leaves = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]
    return functools.reduce(jnp.logical_and, leaves)


def where_finite(finite: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """Return `new` if `finite`, else `old`.

    The schedule's counter is always new, because it counts every update.
    """

    def is_counter(x) -> bool:
        return isinstance(x, optax.ScaleByScheduleState)

    def choose(n, o):
        return n if is_counter(n) else jnp.where(finite, n, o)

    return jax.tree.map(choose, new, old, is_leaf=is_counter)


def decayed(params: PyTree) -> PyTree:
    """Mask of the parameters with weight decay: matrices and tables.

    Biases and norms have none, even with two axes: a bias in attention is [heads, width].
    """

    def is_matrix(path, leaf):
        return leaf.ndim > 1 and not path_names(path)[-1].endswith(("bias", "scale"))

    return jax.tree_util.tree_map_with_path(is_matrix, params)


def global_norm(tree: PyTree, shardings: PyTree = None) -> jax.Array:
    """Return the norm over all arrays in `tree`, a float32 scalar.

    On a GPU the sum of one array takes two kernels. Here one kernel for each array sums its last
    axes, as few as hold 256 elements, and one more kernel adds up all these sums. The barrier keeps
    XLA from splitting that kernel again.

    Args:
        shardings: shardings of the arrays. Sharded arrays are summed one by one, because
            concatenating them would gather them.
    """
    if not all(x.is_fully_replicated for x in jax.tree.leaves(shardings)):
        return optax.tree.norm(tree)

    def partial_sums(x: jax.Array) -> jax.Array:
        first = next((i for i in range(x.ndim - 1, 0, -1) if math.prod(x.shape[i:]) >= 256), x.ndim)
        return jnp.square(x).sum(range(first, x.ndim)).reshape(-1)

    sums = jnp.concatenate([partial_sums(x) for x in jax.tree.leaves(tree)])
    return jnp.sqrt(jax.lax.optimization_barrier(sums).sum())


def _clip(limit: float) -> optax.GradientTransformation:
    def clipped(grads, params):
        n = optax.tree.norm(grads)
        return jax.tree.map(lambda g: jnp.where(n < limit, g, g / n * limit), grads)

    return optax.stateless(clipped)


def learning_rate_schedule(config: Config) -> Callable[[jax.Array | int], jax.Array]:
    """Return the function update -> float32 learning rate; updates count from 1.

    Raises ValueError for an unknown schedule.
    """
    o = config.optimizer
    rate = SCHEDULES.load(o.schedule)(config)
    return lambda update: rate(jnp.asarray(update, jnp.float32) - 1 + o.schedule_first_step)


def noam(config: Config) -> Schedule:
    """Schedule lr_scale * d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5).

    Equation 3 in 5.3.
    """
    o, d_model = config.optimizer, config.model.d_model
    return lambda t: o.lr_scale * d_model**-0.5 * jnp.minimum(t**-0.5, t * o.warmup_steps**-1.5)


def inverse_sqrt(config: Config) -> Schedule:
    """Schedule peak_lr * sqrt(warmup_steps / t) after the warm-up."""
    o = config.optimizer
    return warm_up(o, lambda t: o.peak_lr * jnp.sqrt(o.warmup_steps / t))


def constant(config: Config) -> Schedule:
    """Schedule peak_lr after the warm-up."""
    o = config.optimizer
    return warm_up(o, lambda t: jnp.asarray(o.peak_lr))


def warm_up(o: Optimizer, rate: Schedule) -> Schedule:
    """Rise linearly to peak_lr, then follow `rate`.

    The line goes from warmup_init at t = 0 to peak_lr at t = warmup_steps.
    """

    def warm(t):
        return o.warmup_init + (o.peak_lr - o.warmup_init) * t / o.warmup_steps

    return lambda t: jnp.where(t < o.warmup_steps, warm(t), rate(t))
