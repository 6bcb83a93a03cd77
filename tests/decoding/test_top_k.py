"""Grouped top-k equals lax.top_k: values, order and tie-breaking by index.

Grouped log-sum-exp equals its definition.
"""

import jax
import numpy as np
import pytest

from t2t_flax.decoding.search_loop import log_sum_exp, top_k


def brute_force(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order


@pytest.mark.parametrize(
    "values, size, k",
    [
        ("distinct", 1, 1),
        ("distinct", 129, 4),
        ("ties", 64, 9),
        ("ties", 300, 300),
        ("ties", 1000, 4),
        ("ties", 4133, 9),
        ("constant", 4096, 4),
        ("padded", 127, 9),
        ("padded", 4000, 4),
    ],
)
def test_equals_stable_sort_and_lax_top_k(values, size, k):
    """Fewer values than a group, whole groups, a rest, and ties within and between groups."""
    rng = np.random.default_rng([size, k])
    x = {
        "distinct": rng.permutation(3 * size * 2).reshape(3, 2, size),
        "ties": rng.integers(0, 4, (3, 2, size)),
        "constant": np.zeros((3, 2, size)),
        "padded": np.where(
            rng.random((3, 2, size)) < 0.97, -np.inf, rng.integers(0, 3, (3, 2, size))
        ),
    }[values].astype(np.float32)
    expected, order = brute_force(x, k)
    values_out, index = jax.jit(top_k, static_argnums=1)(x, k)
    np.testing.assert_array_equal(values_out, expected)
    np.testing.assert_array_equal(index, order)
    np.testing.assert_array_equal(jax.lax.top_k(x, k)[1], order)


@pytest.mark.parametrize("size", [1, 64, 129, 800, 4133])
def test_log_sum_exp_equals_its_definition(size):
    """Also where exp of the values overflows, and beside rows that pad the vocabulary."""
    rng = np.random.default_rng(size)
    x = (
        rng.normal(size=(3, 2, size)) * np.array([1.0, 30.0])[:, None]
        + np.array([0.0, 300.0, -300.0])[:, None, None]
    )
    x = np.where((np.arange(size) > 0.9 * size) & (size > 1), -1e9, x).astype(np.float32)
    exact = x.astype(np.float64)
    largest = exact.max(-1, keepdims=True)
    expected = np.log(np.exp(exact - largest).sum(-1, keepdims=True)) + largest
    np.testing.assert_allclose(jax.jit(log_sum_exp)(x), expected, rtol=2e-7, atol=1e-5)
