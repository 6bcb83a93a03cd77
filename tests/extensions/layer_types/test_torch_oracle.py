"""RMSNorm, and ALiBi with grouped heads, against PyTorch."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.config import Model
from t2t_flax.extensions.layer_types.layers import rms_norm
from t2t_flax.models.attention import MixerInputs, SelfAttention

torch = pytest.importorskip("torch")


def test_grouped_heads_equal_pytorchs_scaled_dot_product_attention():
    """With ALiBi as the float mask of PyTorch's grouped attention."""
    config = Model(d_model=12, num_heads=6, num_kv_heads=2, d_k=4, d_v=5, position="alibi")
    module, x = SelfAttention(config), jax.random.normal(jax.random.key(0), (2, 9, 12))
    index = jnp.broadcast_to(jnp.arange(9), (2, 9))
    inputs = MixerInputs(jnp.ones((2, 9), jnp.int32), index)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(1), x, inputs))["params"]
    q, k, v = (
        torch.einsum("btd,dnh->bnth", torch.tensor(np.asarray(x)), torch.tensor(np.asarray(params[name]["kernel"])))
        for name in ("query", "key", "value")
    )
    distance = (torch.arange(9)[:, None] - torch.arange(9)).abs()
    slopes = torch.tensor(
        [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    )  # six heads: all slopes of four heads, two of eight
    bias = (-slopes[:, None, None] * distance).expand(2, 6, 9, 9)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
    expected = torch.einsum("bnth,nhd->btd", mixed, torch.tensor(np.asarray(params["out"]["kernel"])))
    np.testing.assert_allclose(module.apply({"params": params}, x, inputs), expected, atol=1e-5)


def test_rms_norm_equals_pytorchs():
    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype(np.float32) + 1
    module = rms_norm(1e-3, jnp.float32)
    scale = np.linspace(0.5, 2, 8, dtype=np.float32)
    expected = torch.nn.functional.rms_norm(torch.tensor(x), (8,), torch.tensor(scale), 1e-3)
    np.testing.assert_allclose(module.apply({"params": {"scale": scale}}, x), expected, atol=1e-6)
