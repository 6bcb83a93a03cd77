"""Mixers, the sub-layers that mix positions: the paper's is self-attention, others (Table 1) are rows of `registry.MIXERS`.

A mixer is a flax module with the fields (config, dtype, causal, depth), `depth` being the number of layers below:

    NAME                                  under which a layer's parameters hold it
    __call__(x_BxTxD, inputs)             packed rows [B, T, D]; no segment may influence another
    empty_cache(batch, beams, length)     what incremental decoding keeps (axes: see `decoding.search_loop`)
    step(x_BxKxD, cache, position)        one decoding step: ([B, K, D], the new cache)

In the decoder it is causal.
"""

from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.dropout import Noise
from t2t_flax.registry import MIXERS


@flax.struct.dataclass
class MixerInputs:
    """segments: int32 [B, T], numbered from 1 in each row, 0 = padding. positions: int32 [B, T], from 0 in each
    segment. noise: of dropout, None = no dropout.
    """

    segments: jax.Array
    positions: jax.Array
    noise: Noise | None = None


def mixer_class(config: Model) -> Any:
    """Returns the class of model.mixer."""
    return MIXERS.load(config.mixer)


def make_mixer(config: Model, dtype: jnp.dtype, *, causal: bool, depth: int) -> nn.Module:
    """Returns the mixer of a layer above `depth` others, causal in the decoder."""
    mixer = mixer_class(config)
    return mixer(config, dtype, causal, depth, name=mixer.NAME)
