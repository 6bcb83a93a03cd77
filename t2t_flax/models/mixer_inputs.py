"""Inputs of a mixer besides the activations."""

import flax
import jax

from t2t_flax.models.dropout import Noise


@flax.struct.dataclass
class MixerInputs:
    """segments: int32 [B, T], numbered from 1 in each row, 0 = padding. positions: int32 [B, T], from 0 in each
    segment. noise: of dropout, None = no dropout.
    """

    segments: jax.Array
    positions: jax.Array
    noise: Noise | None = None
