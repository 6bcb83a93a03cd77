"""Initial weights and dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import model_and_state, small_config

from t2t_flax.models.dropout import Dropout, Noise, mix, noise_key, random_bits


def test_kernels_have_the_standard_deviation_of_xavier():
    """sqrt(2 / (fan_in + fan_out)) with the fans of the whole matrix.

    0.0442 for q, k, v and o of the base model.
    """
    config = small_config(
        model=dict(d_model=512, d_ff=2048, num_heads=8, num_encoder_layers=1, num_decoder_layers=1)
    )
    params = model_and_state(config, vocab=1000)[2].params
    attention, ffn = params["encoder_0"]["self_attention"], params["encoder_0"]["feed_forward"]
    for name in ("query", "key", "value", "out"):
        assert np.std(attention[name]["kernel"]) == pytest.approx(0.0442, rel=0.01), name
    for kernel in ffn.values():
        assert np.std(kernel["kernel"]) == pytest.approx((2 / (512 + 2048)) ** 0.5, rel=0.01)
        assert not kernel["bias"].any()
    assert np.std(params["shared_embedding"]["table"]) == pytest.approx(512**-0.5, rel=0.01)
    assert not any("bias" in kernel for kernel in attention.values())


def masks(rows, update=0, seed=0, shape=(50, 32), site="a", rate=0.3):
    noise = Noise(noise_key(seed, jnp.int32(update)), jnp.asarray(rows, jnp.uint32))
    return np.asarray(Dropout(rate, name=site).apply({}, jnp.ones((len(rows), *shape)), noise))


def test_dropout_has_its_rate_and_preserves_the_mean():
    x = masks(range(256))
    assert (x == 0).mean() == pytest.approx(0.3, abs=0.003)
    assert x.mean() == pytest.approx(1.0, abs=0.005)
    np.testing.assert_allclose(x[x > 0], 1 / 0.7, rtol=1e-6)
    for axis in range(3):  # no row, position or feature is favoured
        others = tuple(a for a in range(3) if a != axis)
        rates = (x == 0).mean(axis=others)
        expected = (0.3 * 0.7 / (x.size / x.shape[axis])) ** 0.5
        assert np.abs(rates - 0.3).max() < 5 * expected


def test_dropout_masks_are_uncorrelated():
    base = masks(range(64)) == 0
    for other in (masks(range(64, 128)), masks(range(64), update=1), masks(range(64), seed=1)):
        assert abs(np.corrcoef(base.ravel(), (other == 0).ravel())[0, 1]) < 0.01
    shifted = [base[1:] * 1.0, base[:, 1:] * 1.0, base[:, :, 1:] * 1.0]
    for a, b in zip(shifted, (base[:-1], base[:, :-1], base[:, :, :-1]), strict=True):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.01


def test_dropout_mask_follows_the_global_row():
    """A row gets the same mask in any microbatch."""
    all_rows = masks(range(12))
    np.testing.assert_array_equal(np.concatenate([masks(range(5)), masks(range(5, 12))]), all_rows)


def test_dropout_sites_differ():
    class Two(__import__("flax").linen.Module):
        @__import__("flax").linen.compact
        def __call__(self, x, noise):
            return Dropout(0.5, name="a")(x, noise), Dropout(0.5, name="b")(x, noise)

    noise = Noise(noise_key(0, jnp.int32(0)), jnp.arange(64, dtype=jnp.uint32))
    a, b = Two().apply({}, jnp.ones((64, 8, 32)), noise)
    assert abs(np.corrcoef((a == 0).ravel(), (b == 0).ravel())[0, 1]) < 0.02


def test_hash_is_a_bijection_with_avalanche():
    x = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32)
    assert len(np.unique(np.asarray(mix(jnp.asarray(x))))) == len(np.unique(x))
    for bit in range(0, 32, 5):
        flipped = np.asarray(mix(jnp.asarray(x)) ^ mix(jnp.asarray(x ^ np.uint32(1 << bit))))
        assert np.unpackbits(flipped.view(np.uint8)).mean() == pytest.approx(0.5, abs=0.02)


def test_random_bits_depend_on_every_index():
    noise = Noise(noise_key(0, jnp.int32(0)), jnp.arange(4, dtype=jnp.uint32))
    bits = np.asarray(random_bits(noise, 1, (4, 3, 5, 7)))
    assert len(np.unique(bits)) == bits.size


def test_no_dropout_without_random_key():
    x = jax.random.normal(jax.random.key(0), (2, 3))
    np.testing.assert_array_equal(Dropout(0.5).apply({}, x, None), x)
