"""Grouped top-k is lax.top_k: values, order, and the lower index among equals."""

import jax
import numpy as np
import pytest

from t2t_flax.decoding.top_k import top_k


def brute_force(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order


@pytest.mark.parametrize("size", [1, 7, 64, 100, 127, 128, 129, 1000, 4096, 4133])
@pytest.mark.parametrize("k", [1, 4, 9])
@pytest.mark.parametrize("values", ["distinct", "ties", "constant", "padded"])
def test_equals_a_stable_sort(size, k, values):
    k = min(k, size)
    rng = np.random.default_rng([size, k])
    x = {
        "distinct": rng.permutation(3 * size * 2).reshape(3, 2, size),
        "ties": rng.integers(0, 4, (3, 2, size)),
        "constant": np.zeros((3, 2, size)),
        "padded": np.where(rng.random((3, 2, size)) < 0.97, -np.inf, rng.integers(0, 3, (3, 2, size))),
    }[values].astype(np.float32)
    for group in (8, 128):
        found, index = jax.jit(top_k, static_argnums=(1, 2))(x, k, group)
        expected, order = brute_force(x, k)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(index, order)
        reference, reference_index = jax.lax.top_k(x, k)
        np.testing.assert_array_equal(found, reference)
        np.testing.assert_array_equal(index, reference_index)


def test_k_of_the_whole_axis_sorts_it():
    x = np.random.default_rng(0).integers(0, 9, (2, 300)).astype(np.float32)
    values, index = top_k(x, 300)
    expected, order = brute_force(x, 300)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(index, order)
