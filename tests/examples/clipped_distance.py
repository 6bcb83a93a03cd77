"""A position scheme: a bias on the scores of self-attention."""

import flax.linen as nn
import jax.numpy as jnp

from t2t_flax.models.embeddings import PositionScheme
from t2t_flax.registry import POSITIONS


def clipped_distance(module, query_position, key_position):
    """A learned bias for each distance up to 16, in each head."""
    init = nn.with_logical_partitioning(nn.initializers.zeros, (None, "heads"))
    table = module.param("table", init, (33, module.config.num_heads), jnp.float32)
    distance = key_position[..., None, :] - query_position[..., :, None]
    return jnp.moveaxis(table[jnp.clip(distance, -16, 16) + 16], -1, -3)


SCHEME = PositionScheme(bias=clipped_distance)
POSITIONS.add("clipped_distance", "clipped_distance:SCHEME")
