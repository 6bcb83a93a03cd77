"""Attention over whole rows and in decoding steps, and its grouped heads."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.refusals import refused

from t2t_flax.config import Model, resolve
from t2t_flax.models.attention import MixerInputs, MultiHeadAttention, SelfAttention

LENGTH, ROWS = 37, 2
CASES = {
    "scaled dot": {},
    "grouped": dict(num_kv_heads=2, attention_bias=True),
    "dot": dict(num_kv_heads=1, attention_score="dot", d_k=3, d_v=5),
}


@pytest.fixture(params=CASES, ids=str)
def causal_attention(request):
    """(module, variables, x [2, 37, 16]), biases away from 0."""
    module = SelfAttention(Model(d_model=16, num_heads=4, **CASES[request.param]), causal=True)
    x = jax.random.normal(jax.random.key(1), (ROWS, LENGTH, 16))
    variables = jax.jit(module.init)(jax.random.key(0), x[:, :8], whole_rows(8))
    params = jax.tree.map(
        lambda p: p + 0.3 * jnp.cos(jnp.arange(p.size)).reshape(p.shape), variables["params"]
    )
    return module, {"params": params}, x


def whole_rows(length: int) -> MixerInputs:
    positions = jnp.broadcast_to(jnp.arange(length), (ROWS, length))
    return MixerInputs(jnp.ones((ROWS, length), jnp.int32), positions)


def test_whole_rows_and_decoding_steps_agree(causal_attention):
    module, variables, x = causal_attention
    rows = whole_rows(LENGTH)
    full = jax.jit(module.apply)(variables, x, rows)

    @jax.jit
    def decode(variables):
        def step(cache, position):
            out, cache = module.apply(
                variables, x[:, None, position], cache, position, method="step"
            )
            return cache, out[:, 0]

        cache = module.apply(variables, ROWS, 1, LENGTH, method="empty_cache")
        return jax.lax.scan(step, cache, jnp.arange(LENGTH))[1].swapaxes(0, 1)

    np.testing.assert_allclose(decode(variables), full, atol=2e-5)


def test_segments_restart_positions(causal_attention):
    """The second segment of a packed row gives the same output as on its own."""
    module, variables, x = causal_attention
    apply = jax.jit(module.apply)
    cut = 11
    segments = jnp.broadcast_to(jnp.where(jnp.arange(LENGTH) < cut, 1, 2), (ROWS, LENGTH))
    positions = jnp.where(segments == 1, jnp.arange(LENGTH), jnp.arange(LENGTH) - cut)
    packed = apply(variables, x, MixerInputs(segments, positions))
    separate = apply(variables, jnp.roll(x, -cut, axis=1), whole_rows(LENGTH))
    np.testing.assert_allclose(packed[:, cut:], separate[:, : LENGTH - cut], atol=2e-5)


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_grouped_heads_equal_repeated_key_heads(kv_heads):
    """Output, and the gradient of the shared kernel as the sum over its group.

    The cache is smaller by the same factor.
    """
    shape = dict(d_model=12, num_heads=6, d_k=4, d_v=5)
    grouped, full = (
        MultiHeadAttention(Model(**shape, num_kv_heads=kv_heads)),
        MultiHeadAttention(Model(**shape)),
    )
    x, memory = (
        jax.random.normal(jax.random.key(n), (2, length, 12)) for n, length in ((0, 5), (1, 7))
    )
    mask = jnp.ones((2, 1, 5, 7), bool).at[1, :, :, 4:].set(False)
    params = nn.unbox(
        jax.jit(lambda key: grouped.init(key, x, memory, mask, None))(jax.random.key(2))
    )["params"]
    repeats = 6 // kv_heads
    repeated = params | {
        n: {"kernel": jnp.repeat(params[n]["kernel"], repeats, axis=1)} for n in ("key", "value")
    }

    def output_and_gradient(module, params):
        def loss(p):
            out = module.apply({"params": p}, x, memory, mask, None)
            return jnp.sin(out).sum(), out

        (_, out), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        return out, grads

    a, grads = output_and_gradient(grouped, params)
    b, grads_full = output_and_gradient(full, repeated)
    np.testing.assert_allclose(a, b, atol=1e-5)
    for name in ("key", "value"):
        assert params[name]["kernel"].shape[1] == kv_heads
        summed = grads_full[name]["kernel"].reshape(12, kv_heads, repeats, -1).sum(2)
        np.testing.assert_allclose(grads[name]["kernel"], summed, atol=1e-4)
    cache = SelfAttention(grouped.config, causal=True).apply(
        {"params": params}, 3, 2, 8, method="empty_cache"
    )
    assert cache.key.shape == (3, kv_heads, 4, 2 * 8) and cache.value.shape == (
        3,
        kv_heads,
        2 * 8,
        5,
    )


def test_heads_of_keys_must_divide_those_of_queries():
    with refused("model.num_kv_heads", "3", "config.model.num_heads", "8"):
        resolve({"model": {"num_kv_heads": 3}})
