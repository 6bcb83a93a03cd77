"""A mixer without weights: each position takes the mean of those that it sees."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.models.attention import causal_mask, segment_mask
from t2t_flax.models.dense import Einsum
from t2t_flax.registry import MIXERS


class RunningMean(nn.Module):
    """The mean of the segment so far, or of the whole segment in the encoder, times a matrix."""

    NAME: ClassVar[str] = "running_mean"
    config: Model
    dtype: jnp.dtype
    causal: bool
    depth: int = 0

    def setup(self):
        d = self.config.d_model
        self.out = Einsum("...d,de->...e", (d, d), ("embed", "kv"), dtype=self.dtype)

    def __call__(self, x_BxTxD, inputs):
        mask_BxTxT = segment_mask(inputs.segments, inputs.segments)[:, 0]
        mask_BxTxT = mask_BxTxT & causal_mask(x_BxTxD.shape[1])[0] if self.causal else mask_BxTxT
        weights_BxTxT = mask_BxTxT / jnp.maximum(1, mask_BxTxT.sum(-1, keepdims=True))
        return self.out(weights_BxTxT.astype(x_BxTxD.dtype) @ x_BxTxD)

    def empty_cache(self, batch, beams, length):
        return {"state": jnp.zeros((batch, beams, self.config.d_model), jnp.float32)}

    def step(self, x_BxKxD, cache, position):
        total = cache["state"] + x_BxKxD
        return self.out(total / (position + 1)), {"state": total}


MIXERS.add("running_mean", "running_mean:RunningMean")
