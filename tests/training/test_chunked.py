"""The loss in chunks is the loss: same sums, same gradients, whatever the chunk and the shards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_flax.training.chunked_loss import chunked_sums
from t2t_flax.training.losses import smoothed_cross_entropy

VOCAB = 13


def sums(params, hidden, targets, weights):
    logits = hidden @ params["table"].T + params["bias"]
    return smoothed_cross_entropy(logits, targets, weights, label_smoothing=0.1, vocab_size=VOCAB)


@pytest.mark.parametrize("chunk", [1, 3, 5, 64])
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_chunks_change_neither_sums_nor_gradients(chunk, shards):
    keys = jax.random.split(jax.random.key(0), 5)
    params = {"table": jax.random.normal(keys[0], (16, 8)), "bias": jax.random.normal(keys[1], (16,))}
    hidden = jax.random.normal(keys[2], (4, 6, 8))
    targets = jax.random.randint(keys[3], (4, 6), 0, VOCAB)
    weights = jax.random.bernoulli(keys[4], 0.7, (4, 6)).astype(jnp.float32)
    whole = jax.value_and_grad(lambda p, h: (3 * sums(p, h, targets, weights)[0], 0), (0, 1), has_aux=True)
    parts = jax.value_and_grad(
        lambda p, h: (3 * chunked_sums(sums, p, h, targets, weights, chunk=chunk, shards=shards)[0], 0),
        (0, 1),
        has_aux=True,
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5),
        whole(params, hidden),
        parts(params, hidden),
    )
    plain = chunked_sums(sums, params, hidden, targets, weights, chunk=chunk, shards=shards)
    np.testing.assert_allclose(plain, sums(params, hidden, targets, weights), rtol=1e-5)
