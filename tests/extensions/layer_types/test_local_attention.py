"""Local self-attention: reach, cost, and equality with full attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.config import Model
from t2t_flax.extensions.layer_types import LayerTypes
from t2t_flax.extensions.layer_types.local_attention import LocalAttention
from t2t_flax.models.attention import MixerInputs, SelfAttention
from t2t_flax.models.dropout import Noise

D = 8


def layer(window, *, causal=False, **keys):
    """window 0: over whole rows."""
    group = (("layer_types", LayerTypes(window=window)),) if window else ()
    config = Model(d_model=D, num_heads=2, extensions=group, **keys)
    return (LocalAttention if window else SelfAttention)(config, jnp.dtype("float32"), causal)


def parameters(module, length=8):
    return jax.jit(module.init)(
        jax.random.key(0), jnp.ones((1, length, D)), inputs(jnp.ones((1, length), jnp.int32))
    )


def inputs(segments, noise=None):
    """Positions that restart in each segment."""
    index = jnp.arange(segments.shape[1])
    starts = jnp.where(segments != jnp.roll(segments, 1, axis=1), index, 0).at[:, 0].set(0)
    return MixerInputs(segments, index - jax.lax.cummax(starts, axis=1), noise)


def rows(count, length, seed=0):
    """Inputs, and segments of random lengths with padding at the end."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(1, length, (count, 4)), axis=1)
    segments = (np.arange(length)[None, :, None] >= cuts[:, None]).sum(-1) + 1
    segments[segments == 5] = 0
    return jnp.asarray(rng.normal(size=(count, length, D)), jnp.float32), jnp.asarray(
        segments, jnp.int32
    )


@pytest.mark.parametrize(
    ("score", "causal", "window", "length"),
    [
        ("scaled_dot", False, 1, 40),
        ("scaled_dot", True, 25, 61),
        ("dot", True, 7, 45),
        ("additive", False, 17, 64),
    ],
)
def test_bands_equal_the_masked_full_matrix(score, causal, window, length):
    """Output and gradient of every real position, with segments and padding.

    Collecting weights selects the masked path.
    """
    module = layer(window, causal=causal, attention_score=score)
    params = parameters(module)
    x, segments = rows(3, length)

    real = segments > 0

    def banded(x):
        return jnp.where(real[..., None], module.apply(params, x, inputs(segments)), 0), None

    def masked(x):
        out, state = module.apply(params, x, inputs(segments), mutable=["intermediates"])
        return jnp.where(real[..., None], out, 0), state["intermediates"]["weights"][0]

    @functools.partial(jax.jit, static_argnums=0)
    def both(f, x):
        out, back, weights = jax.vjp(f, x, has_aux=True)
        return out, back(jnp.cos(out))[0], weights

    (out, grad, _), (out_masked, grad_masked, weights) = both(banded, x), both(masked, x)
    np.testing.assert_allclose(out, out_masked, atol=2e-6)
    np.testing.assert_allclose(grad, grad_masked, atol=1e-5)
    assert weights.shape == (3, 2, length, length)
    far = np.abs(np.arange(length)[:, None] - np.arange(length)) > window // 2
    assert (np.where(far & np.asarray(real)[:, None, :, None], weights, 0) == 0).all()
    assert float(jnp.abs(grad).max()) > 0.01


def test_attention_dropout_acts_in_bands():
    """Equal for equal random keys; the mean over many keys equals the output without dropout."""
    x, segments = rows(2, 48)
    module = layer(9, dropout_attention=0.2)
    params = parameters(module)

    @jax.jit
    @jax.vmap
    def dropped(seed):
        noise = Noise(jnp.stack([seed, seed ^ 77]), jnp.arange(2, dtype=jnp.uint32))
        return module.apply(params, x, inputs(segments, noise))

    outs = dropped(jnp.arange(400, dtype=jnp.uint32))
    np.testing.assert_allclose(outs[:3], dropped(jnp.arange(3, dtype=jnp.uint32)), atol=1e-5)
    assert (jnp.std(outs, axis=0)[:, 1:20][segments[:, 1:20] > 0] > 0).all()
    without = jax.jit(module.apply)(params, x, inputs(segments))
    error = jnp.std(outs, axis=0) / 400**0.5
    assert float(jnp.mean(jnp.abs(outs.mean(0) - without) < 3 * error + 1e-6)) > 0.98


@pytest.mark.parametrize(("score", "causal"), [("scaled_dot", True), ("additive", False)])
def test_cost_of_a_window_grows_linearly_with_length(score, causal):
    """Compiled FLOPs of forward and backward.

    Doubling n doubles them with a window and quadruples them without.
    """

    def operations(window, length):
        module = layer(window, causal=causal, attention_score=score)
        params = parameters(module)
        segments = jax.ShapeDtypeStruct((1, length), jnp.int32)
        loss = lambda p, x, s: module.apply(p, x, inputs(s)).sum()  # noqa: E731
        program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(
            params, jax.ShapeDtypeStruct((1, length, D), jnp.float32), segments
        )
        return program.cost_analysis()["flops"]

    assert operations(17, 1024) / operations(17, 512) == pytest.approx(2, rel=0.03)
    assert operations(0, 1024) / operations(0, 512) > 3.5
