"""An optimizer whose state also holds the gradients.

So they leave the train step, which does not return gradients.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from t2t_flax.training.parts import TrainOptimizer


class Recorded(NamedTuple):
    """State of the optimizer with its input gradients."""

    grads: Any
    inner: Any


def recording(tx: TrainOptimizer) -> TrainOptimizer:
    """Return the optimizer with `Recorded` states."""

    def init(params):
        return Recorded(jax.tree.map(jnp.zeros_like, params), tx.init(params))

    def update(grads, state, params=None):
        updates, inner = tx.update(grads, state.inner, params)
        return updates, Recorded(grads, inner)

    return tx._replace(init=init, update=update)
