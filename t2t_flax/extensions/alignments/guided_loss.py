"""The term of the loss that trains a head of the decoder's attention to word alignments."""

from typing import Any

import jax
import jax.numpy as jnp

from t2t_flax.config import Config
from t2t_flax.extensions.alignments import Alignments
from t2t_flax.extensions.alignments.guided import BEGIN, END


class GuidedLoss:
    """-log of the weight that each linked target token gives to the tokens of the source word that it is linked to."""

    array, name = BEGIN, "alignment_loss"

    def __init__(self, config: Config):
        group = Alignments.of(config)
        self._layer, self._head, self._weight = group.layer - 1, group.head - 1, group.weight

    def __call__(self, intermediates: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """(the term of the loss, its sum without its weight) of rows [B, L]."""
        weights_BxNxTxS = intermediates[f"decoder_{self._layer}"]["cross_attention"]["weights"][0]
        weights_BxTxS = weights_BxNxTxS[:, self._head] if self._head >= 0 else weights_BxNxTxS.mean(1)
        begin, end = batch[BEGIN][..., None], batch[END][..., None]
        position = jnp.arange(weights_BxTxS.shape[-1])
        given = jnp.where((begin <= position) & (position < end), weights_BxTxS.astype(jnp.float32), 0.0).sum(-1)
        linked = batch[END] > batch[BEGIN]
        total = -jnp.where(linked, jnp.log(jnp.where(linked, given, 1.0) + 1e-6), 0.0).sum()
        return self._weight * total, total


def loss(config: Config) -> GuidedLoss:
    """Of a run whose alignments.guided is set."""
    return GuidedLoss(config)
