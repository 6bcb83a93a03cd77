"""The three paths of local attention (whole matrix, bands, one decoding step), with other positions and scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.config import Model
from t2t_flax.extensions.layer_types import LayerTypes
from t2t_flax.models.attention import MixerInputs, make_mixer

LENGTH, ROWS = 37, 2
CASES = {
    "window": dict(window=7),
    "rotary": dict(position="rotary", window=7, num_kv_heads=2, attention_bias=True),
    "alibi": dict(position="alibi", window=5, num_kv_heads=1, attention_score="dot", d_k=3, d_v=5),
    "additive": dict(position="alibi", window=9, attention_score="additive"),
    "no window": dict(position="rotary", num_kv_heads=4),
}


@pytest.fixture(params=CASES, ids=str)
def causal_attention(request):
    """(module, variables, x [2, 37, 16]), biases away from 0."""
    keys = dict(CASES[request.param])
    window = keys.pop("window", 0)
    group = (("layer_types", LayerTypes(window=window)),) if window else ()
    mixer = "local_attention" if window else "attention"
    config = Model(d_model=16, num_heads=4, mixer=mixer, extensions=group, **keys)
    module = make_mixer(config, jnp.dtype("float32"), causal=True, depth=0)
    x = jax.random.normal(jax.random.key(1), (ROWS, LENGTH, 16))
    variables = jax.jit(module.init)(jax.random.key(0), x[:, :8], whole_rows(8))
    params = jax.tree.map(lambda p: p + 0.3 * jnp.cos(jnp.arange(p.size)).reshape(p.shape), variables["params"])
    return module, {"params": params}, x


def whole_rows(length: int) -> MixerInputs:
    positions = jnp.broadcast_to(jnp.arange(length), (ROWS, length))
    return MixerInputs(jnp.ones((ROWS, length), jnp.int32), positions)


def test_full_banded_and_stepwise_attention_agree(causal_attention):
    module, variables, x = causal_attention
    rows = whole_rows(LENGTH)
    bands = jax.jit(module.apply)(variables, x, rows)
    full, _ = jax.jit(lambda v: module.apply(v, x, rows, mutable=["intermediates"]))(variables)
    np.testing.assert_allclose(bands, full, atol=2e-5)

    @jax.jit
    def decode(variables):
        def step(cache, position):
            out, cache = module.apply(variables, x[:, None, position], cache, position, method="step")
            return cache, out[:, 0]

        cache = module.apply(variables, ROWS, 1, LENGTH, method="empty_cache")
        return jax.lax.scan(step, cache, jnp.arange(LENGTH))[1].swapaxes(0, 1)

    np.testing.assert_allclose(decode(variables), full, atol=2e-5)
