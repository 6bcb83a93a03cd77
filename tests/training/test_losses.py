"""The loss, the token metrics, and their chunked computation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.config import Loss
from t2t_flax.training.losses import chunked_sums, token_sums

VOCAB, ROWS = 13, 16  # classes, and rows of the padded table


def sums(params, hidden, targets, weights):
    logits = hidden @ params["table"].T + params["bias"]
    return token_sums(logits, targets, weights, config=Loss(), vocab_size=VOCAB)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_chunks_change_neither_sums_nor_gradients(chunk):
    keys = jax.random.split(jax.random.key(0), 5)
    params = {"table": jax.random.normal(keys[0], (ROWS, 8)), "bias": jax.random.normal(keys[1], (ROWS,))}
    hidden = jax.random.normal(keys[2], (4, 6, 8))
    targets = jax.random.randint(keys[3], (4, 6), 0, VOCAB)
    weights = jax.random.bernoulli(keys[4], 0.7, (4, 6)).astype(jnp.float32)

    def scaled(function):
        def loss(params, hidden):
            loss, others = function(params, hidden, targets, weights)
            return 3 * loss, others

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, hidden)

    chunked = scaled(lambda *args: chunked_sums(sums, *args, chunk=chunk))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), chunked, scaled(sums))


@pytest.mark.parametrize("tokens, chunk, padded", [(2070, 512, 2080), (512, 512, 512), (8192, 512, 8192), (9, 512, 16)])
def test_chunks_are_of_equal_size(tokens, chunk, padded):
    """Padding to a multiple of `chunk` would compute logits of up to a chunk of padding."""
    sizes = []

    def count(params, hidden, targets, weights):
        sizes.append(targets.size)
        return jnp.sum(hidden) * params, {"tokens": weights.sum()}

    rows = (jnp.ones((1, tokens, 1)), jnp.ones((1, tokens), jnp.int32), jnp.ones((1, tokens)))
    _, others = jax.jit(lambda *args: chunked_sums(count, jnp.ones(()), *args, chunk=chunk))(*rows)
    assert float(others["tokens"]) == tokens
    assert max(sizes) <= max(chunk, 8) and padded % max(sizes) == 0 and padded - tokens < 8 * padded / max(sizes)


def test_accuracy_counts_real_targets_with_the_highest_logit():
    logits = jnp.array([[[0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 0.0, 9.0]]])
    _, others = token_sums(logits, jnp.array([[1, 2, 2]]), jnp.array([[1.0, 1.0, 0.0]]), config=Loss(), vocab_size=3)
    assert float(others["accuracy"]) == 1.0  # of two: the third is padding
