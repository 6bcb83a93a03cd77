"""An optimizer whose state also holds the gradients: so they leave the train step, which returns no others."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class Recorded(NamedTuple):
    """State of the optimizer with the gradients that it was given."""

    grads: Any
    inner: Any


def recording(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return the optimizer with `Recorded` states."""

    def init(params):
        return Recorded(jax.tree.map(jnp.zeros_like, params), tx.init(params))

    def update(grads, state, params=None):
        updates, inner = tx.update(grads, state.inner, params)
        return updates, Recorded(grads, inner)

    return optax.GradientTransformation(init, update)
