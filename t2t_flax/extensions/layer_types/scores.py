"""Attention scores other than dot products."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.models.dense import product_with_float32_result


class AdditiveScore(nn.Module):
    """v^T tanh(q + k) in each head; slower and larger than products, as 3.2.1 says. q [..., T, N, H], k [..., S, N, H] ->
    float32 [..., N, T, S].

    q and k are projections already: the network of Bahdanau et al. with its first matrix cut in two.
    """

    @nn.compact
    def __call__(self, q: jax.Array, k: jax.Array) -> jax.Array:
        init = nn.initializers.variance_scaling(1.0, "fan_in", "uniform", in_axis=1, out_axis=0)
        v = self.param("v", nn.with_logical_partitioning(init, ("heads", "kv")), q.shape[-2:], jnp.float32)
        hidden = jnp.tanh(q[..., :, None, :, :] + k[..., None, :, :, :])  # [..., T, S, N, H]
        return product_with_float32_result("...tsnh,nh->...nts", hidden, v, hidden.dtype)
