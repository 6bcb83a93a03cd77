"""Gradient noise scale (McCandlish et al. 2018).

It is the batch size at which a gradient is as much noise as signal.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.scaling.intervals import LEVEL, Interval
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.models.transformer import matmul_precision_scope
from t2t_flax.training.losses import loss_sums
from t2t_flax.training.parts import TrainingSetup

GROUPS = 8
"""Number of groups of batches whose sums are kept.

The host's memory holds as many copies of the gradient.
"""


@dataclasses.dataclass(frozen=True)
class Gradients:
    """A group of batches.

    Args:
        total: sum of their gradients [P].
        squares: sum of the squared norms of their gradients.
        count: number of batches.
        tokens: tokens of all batches.
    """

    total: np.ndarray
    squares: float
    count: int
    tokens: float


def noise_scale(groups: Sequence[Gradients]) -> Interval:
    """Return the noise scale in tokens, with an interval by jackknife over groups.

    It is the trace of the covariance of a token's gradient over the squared norm of the mean
    gradient, from the norms of the gradients of single batches and of all together. Infinite if no
    gradient can be told from noise.
    """
    total = np.asarray(np.sum([group.total for group in groups], 0, dtype=np.float64))
    norm = float(total @ total)
    whole = _scale(norm, groups)
    parts = []
    for i, group in enumerate(groups):
        own = group.total.astype(np.float64)
        parts.append(
            _scale(
                norm - 2 * float(total @ own) + float(own @ own), [*groups[:i], *groups[i + 1 :]]
            )
        )
    if not math.isfinite(whole) or not all(map(math.isfinite, parts)) or min(parts) <= 0:
        return Interval(whole, 0.0, math.inf)
    from scipy import stats

    logs = np.log(parts)
    error = math.sqrt((len(logs) - 1) / len(logs) * float(((logs - logs.mean()) ** 2).sum()))
    ratio = math.exp(float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1)) * error)
    return Interval(whole, whole / ratio, whole * ratio)


def _scale(norm_of_sum: float, groups: Sequence[Gradients]) -> float:
    count = sum(group.count for group in groups)
    small, large = sum(group.squares for group in groups) / count, norm_of_sum / count**2
    tokens = sum(group.tokens for group in groups) / count
    signal = (count * large - small) / (count - 1)
    noise = (small - large) * count / (count - 1) * tokens
    return noise / signal if signal > 0 else math.inf


def measure(setup: TrainingSetup, params: Any, first: int, batches: int) -> list[Gradients]:
    """Return the gradients of the training loss, with dropout, at these parameters.

    They come from the run's batches from number `first` on.
    """
    config, model = setup.config, setup.model

    @jax.jit
    def gradient(params, batch, number):
        count, rows, _ = batch["target"].shape
        key = noise_key(config.seed.dropout, number)

        def loss(params, micro, numbers):
            total, others = loss_sums(config, model, params, micro, Noise(key, numbers))
            return total, others["tokens"]

        def add(done, part):
            with matmul_precision_scope(model.matmul_precision):
                (_, tokens), grads = jax.value_and_grad(loss, has_aux=True)(params, *part)
            return (jax.tree.map(jnp.add, done[0], grads), done[1] + tokens), None

        numbers = jnp.arange(count * rows, dtype=jnp.uint32).reshape(count, rows)
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params), jnp.float32(0)
        (grads, tokens), _ = jax.lax.scan(add, zero, (batch, numbers))
        flat = ravel_pytree(grads)[0] / tokens
        return flat, flat @ flat, tokens

    groups = []
    for members in np.array_split(np.arange(first, first + batches), GROUPS):
        total: Any = 0.0
        squares, tokens = 0.0, 0.0
        for number in members.tolist():
            with mesh_lib.use(setup.mesh):
                flat, square, count = gradient(params, setup.batches.batch(number).arrays, number)
            total = total + np.asarray(flat)
            squares, tokens = squares + float(square), tokens + float(count)
        groups.append(Gradients(total, squares, len(members), tokens))
    return groups
