"""The loss, the token metrics, and their computation in chunks with an explicit backward pass."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from t2t_flax.config import Loss
from t2t_flax.training.losses import (
    _statistics,
    _statistics_in_one_pass,
    output_sums,
    sums_without_gradient,
    token_sums,
)

VOCAB, WIDTH = 13, 8


def reference(hidden, table, bias, targets, weights, *, config: Loss, vocab: int):
    """Return loss, nll, accuracy and gradients of hidden, table and bias, in float64 by NumPy."""
    logits = hidden @ table[:vocab].T + bias[:vocab]
    log_p = logits - logits.max(-1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
    one_hot, eps = np.eye(vocab)[targets], config.label_smoothing
    uniform = (
        np.full(vocab, 1 / vocab)
        if config.label_smoothing_over == "all"
        else (1 - one_hot) / (vocab - 1)
    )
    smoothed = (1 - eps) * one_hot + eps * uniform
    d_logits = np.zeros((len(targets), len(table)))
    d_logits[:, :vocab] = (np.exp(log_p) - smoothed) * weights[:, None]
    sums = {
        "loss": -(smoothed * log_p).sum(-1) @ weights,
        "nll": -(one_hot * log_p).sum(-1) @ weights,
        "accuracy": (logits[np.arange(len(targets)), targets] >= logits.max(-1)) @ weights,
    }
    return sums, (d_logits @ table, d_logits.T @ hidden, d_logits.sum(0))


def inputs(rng, tokens, rows, dtype, biased):
    """Hidden rows, table and bias that `dtype` holds exactly, targets and weights.

    A third of the tokens are padding.
    """
    arrays = (
        rng.normal(size=(tokens, WIDTH)),
        rng.normal(size=(rows, WIDTH)),
        biased * rng.normal(size=rows),
    )
    arrays = tuple(np.asarray(jnp.asarray(x, dtype), np.float64) for x in arrays)
    return *arrays, rng.integers(0, VOCAB, tokens), (rng.random(tokens) < 0.7).astype(np.float64)


def ours(hidden, table, bias, targets, weights, *, config, chunk, dtype, biased):
    """As `reference`; the tokens are two rows of a batch."""
    sums = functools.partial(token_sums, config=config, vocab_size=VOCAB)
    arrays = (
        jnp.asarray(hidden, dtype),
        jnp.asarray(table, jnp.float32),
        jnp.asarray(bias, jnp.float32),
    )
    rows = jnp.asarray(targets).reshape(2, -1), jnp.asarray(weights, jnp.float32).reshape(2, -1)

    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2), has_aux=True)
    def loss(hidden, table, bias):
        loss, others = output_sums(
            sums, hidden.reshape(2, -1, WIDTH), table, bias if biased else None, *rows, chunk=chunk
        )
        return 3 * loss, {"loss": loss} | others

    (_, found), gradients = jax.jit(loss)(*arrays)
    assert [g.dtype for g in gradients] == [dtype, jnp.float32, jnp.float32]
    return found, tuple(np.asarray(g, np.float64) / 3 for g in gradients)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**16),
    tokens=st.sampled_from((2, 6, 24)),
    rows=st.sampled_from((VOCAB, 16)),
    chunk=st.sampled_from((1, 5, 8, 64)),
    eps=st.sampled_from((0.0, 0.1, 0.9)),
    over=st.sampled_from(("all", "non_target")),
    biased=st.booleans(),
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16)),
)
def test_sums_and_gradients_are_those_of_float64(
    seed, tokens, rows, chunk, eps, over, biased, dtype
):
    """Covers tables with padded rows, biases, and chunks of any size."""
    config = Loss(label_smoothing=eps, label_smoothing_over=over)
    values = inputs(np.random.default_rng(seed), tokens, rows, dtype, biased)
    expected, expected_gradients = reference(*values, config=config, vocab=VOCAB)
    found, gradients = ours(*values, config=config, chunk=chunk, dtype=dtype, biased=biased)
    exact = dtype == jnp.float32
    scale = max(1.0, values[-1].sum()) ** 0.5  # errors of tokens are independent
    for name in ("loss", "nll"):
        np.testing.assert_allclose(
            found[name],
            expected[name],
            rtol=1e-6 if exact else 1e-3,
            atol=scale * (2e-6 if exact else 2e-2),
        )
    if exact:
        assert found["accuracy"] == expected["accuracy"]
    for name, a, b in zip(("hidden", "table", "bias"), gradients, expected_gradients, strict=True):
        if biased or name != "bias":
            assert np.linalg.norm(a - b) <= (1e-5 if exact else 1e-2) * np.linalg.norm(b) + 1e-6, (
                name
            )
    assert not gradients[1][VOCAB:].any() and not gradients[2][VOCAB:].any()


@pytest.mark.parametrize(
    "tokens, chunk, padded", [(2070, 512, 2080), (512, 512, 512), (8192, 512, 8192), (9, 512, 16)]
)
def test_chunks_are_of_equal_size(tokens, chunk, padded):
    """Padding to a multiple of `chunk` would compute logits of up to a chunk of padding."""
    sizes = []

    def count(logits, targets, weights):
        sizes.append(targets.size)
        return jnp.sum(logits), {"tokens": weights.sum()}

    rows = (jnp.ones((1, tokens), jnp.int32), jnp.ones((1, tokens)))
    hidden = jnp.ones((1, tokens, 1))
    _, others = sums_without_gradient(count, lambda hidden: hidden, hidden, *rows, chunk=chunk)
    assert float(others["tokens"]) == tokens
    assert (
        max(sizes) <= max(chunk, 8)
        and padded % max(sizes) == 0
        and padded - tokens < 8 * padded / max(sizes)
    )


def test_statistics_are_the_same_in_one_pass():
    """GPUs run another program than the CPU of the other tests.

    Also for logits whose exponentials overflow.
    """
    logits = 100 * jax.random.normal(jax.random.key(0), (7, 300))
    logits = logits.at[:, -2:].set(-1e9).at[5, 3].set(jnp.nan).at[6, 3].set(jnp.inf)
    plain, one_pass = (
        jax.jit(f)(logits, jnp.maximum(logits, -1e3))
        for f in (_statistics, _statistics_in_one_pass)
    )
    for a, b in zip(plain, one_pass, strict=True):
        np.testing.assert_allclose(a[:5], b[:5], rtol=1e-6, atol=1e-3)
    for highest, sum_exp, _ in (plain, one_pass):
        assert not jnp.isfinite(highest + jnp.log(sum_exp))[5:].any()


@pytest.mark.parametrize("biased", [False, True])
def test_accuracy_of_bfloat16_logits_counts_the_highest(biased):
    """Statistics and the logit of the target are of the same rounded logits."""
    hidden, table, bias, _, _ = inputs(np.random.default_rng(0), 512, VOCAB, jnp.bfloat16, biased)
    logits = jnp.asarray(hidden @ table.T, jnp.bfloat16) + jnp.asarray(bias, jnp.bfloat16)
    targets = np.asarray(logits, np.float64).argmax(-1)
    keys = dict(config=Loss(), chunk=512, dtype=jnp.bfloat16, biased=biased)
    found, _ = ours(hidden, table, bias, targets, np.ones(512), **keys)
    assert found["accuracy"] >= 510  # products may be rounded otherwise here


def test_accuracy_counts_real_targets_with_the_highest_logit():
    logits = jnp.array([[[0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 0.0, 9.0]]])
    _, others = token_sums(
        logits, jnp.array([[1, 2, 2]]), jnp.array([[1.0, 1.0, 0.0]]), config=Loss(), vocab_size=3
    )
    assert float(others["accuracy"]) == 1.0  # of two: the third is padding
