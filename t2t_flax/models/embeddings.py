"""Token embeddings and output logits (3.4), and the start vector of the decoder."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Model
from t2t_flax.config.special_tokens import EOS
from t2t_flax.models.dense import product_with_float32_result

INITS = {
    "normal_rsqrt_d": lambda d_model: nn.initializers.normal(d_model**-0.5),
    "normal_1": lambda d_model: nn.initializers.normal(1.0),
    "xavier": lambda d_model: nn.initializers.xavier_uniform(),
}


class Embedding(nn.Module):
    """Table [rows, d_model]; by default lookups are scaled by sqrt(d_model) and logits are not (3.4)."""

    config: Model
    rows: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        init = nn.with_logical_partitioning(INITS[self.config.embed_init](self.config.d_model), ("vocab", "table"))
        self.table: Any = self.param("table", init, (self.rows, self.config.d_model), jnp.float32)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """ids [...] int32 -> [..., D] in the compute type."""
        return scale(jnp.take(self.table, ids, axis=0).astype(self.dtype), self.config)

    def logits(self, x: jax.Array) -> jax.Array:
        """x [..., D] -> float32 logits [..., rows], with the table as projection."""
        logits = product_with_float32_result("...d,vd->...v", x, self.table, self.dtype)
        return logits * self.config.d_model**-0.5 if self.config.logit_scale == "rsqrt_d" else logits


def scale(x: jax.Array, config: Model) -> jax.Array:
    """x times sqrt(d_model) where the config scales embeddings (3.4)."""
    return x * jnp.asarray(config.d_model**0.5, x.dtype) if config.embed_scale == "sqrt_d" else x


class DecoderStart(nn.Module):
    """The start vector [D] of the decoder: zeros (tensor2tensor), a row of the table, or a parameter."""

    config: Model
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, embedding: Embedding) -> jax.Array:
        kind, d_model = self.config.decoder_start_token, self.config.d_model
        if kind == "bos":
            init = nn.with_logical_partitioning(nn.initializers.normal(d_model**-0.5), ("table",))
            start: Any = self.param("bos", init, (d_model,), jnp.float32)
            return scale(start.astype(self.dtype), self.config)
        if kind == "zeros":
            return jnp.zeros((d_model,), self.dtype)
        return embedding(jnp.asarray({"eos": EOS, "pad": 0}[kind]))
