"""The encoder-decoder: padding and cached decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import VOCAB, model_and_state, random_pairs, rows_alone, small_config

KINDS = [
    dict(norm_placement="post", position="sinusoid_interleaved", tie_embeddings="all"),
    pytest.param(
        dict(norm_placement="pre", position="learned", tie_embeddings="decoder"),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        dict(norm_placement="pre", position="sinusoid_halves", tie_embeddings="none"),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        dict(norm_placement="post", d_k=6, d_v=3, tie_embeddings="all"), marks=pytest.mark.slow
    ),
]


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, batch):
    return model.apply({"params": params}, batch)


@pytest.fixture(scope="module", params=KINDS, ids=lambda k: "-".join(map(str, k.values())))
def model_and_params(request):
    config = small_config(
        model=request.param | dict(dropout=0.0, num_encoder_layers=2, num_decoder_layers=2)
    )
    model, _, state, _ = model_and_state(config)
    # Norms and biases start at 1 and 0; noise exposes a missing one.
    noise = jax.random.normal(jax.random.key(7), (10_000,)) * 0.2
    return model, jax.tree.map(
        lambda x: x + noise[: x.size].reshape(x.shape) if x.ndim == 1 else x, state.params
    )


def test_padding_changes_no_real_position(model_and_params):
    model, params = model_and_params
    pairs = random_pairs(4, longest=20)
    short, long = (logits_of(model, params, rows_alone(pairs, length)) for length in (24, 40))
    for i, (_, target) in enumerate(pairs):
        np.testing.assert_allclose(short[i, : len(target)], long[i, : len(target)], atol=2e-5)


def test_cached_decoding_equals_recomputing_the_prefix(model_and_params):
    model, params = model_and_params
    pairs = random_pairs(4, longest=12)
    batch = rows_alone(pairs, 16)
    full = logits_of(model, params, batch)
    variables = {"params": params}
    start = jax.jit(lambda source: model.apply(variables, source, 2, 16, method="start_cache"))
    cache = start(batch["source"])
    decode_step = jax.jit(lambda *args: model.apply(variables, *args, method="decode_step"))
    for position in range(12):
        previous = batch["target"][:, position - 1] if position else np.zeros(4, np.int32)
        tokens_BxK = np.stack([previous, previous], axis=1)
        step, cache = decode_step(tokens_BxK, jnp.int32(position), cache)
        for i, (_, target) in enumerate(pairs):
            if position < len(target):
                np.testing.assert_allclose(step[i, 0], full[i, position], atol=2e-5)
                np.testing.assert_array_equal(step[i, 0], step[i, 1])


def test_gradient_reaches_every_parameter(model_and_params):
    model, params = model_and_params
    batch = rows_alone(random_pairs(8, longest=20), 24)

    def loss(params):
        log_p = jax.nn.log_softmax(logits_of(model, params, batch))
        gold = jnp.take_along_axis(log_p, batch["target"][..., None], -1)[..., 0]
        return jnp.sum(gold * (batch["target_segments"] > 0))

    for path, grad in jax.tree.leaves_with_path(jax.jit(jax.grad(loss))(params)):
        assert float(jnp.abs(grad).max()) > 0, jax.tree_util.keystr(path)


def test_padded_vocabulary_rows_are_never_predicted():
    model, _, state, _ = model_and_state(small_config())
    logits = logits_of(model, state.params, rows_alone(random_pairs(2), 24))
    assert logits.shape[-1] == 40 and float(logits[..., VOCAB:].max()) == -1e9
    assert logits.dtype == jnp.float32


def test_bfloat16_products_keep_float32_where_it_matters():
    """Parameters, logits, softmax and norm statistics are float32."""
    batch = rows_alone(random_pairs(4), 24)
    config32, config16 = (
        small_config(train=dict(precision=p), model=dict(dropout=0.0))
        for p in ("float32", "bfloat16")
    )
    model32, _, state, _ = model_and_state(config32)
    model16, _, state16, _ = model_and_state(config16)
    assert {x.dtype for x in jax.tree.leaves(state16.params)} == {jnp.dtype("float32")}
    logits = logits_of(model16, state.params, batch)
    assert logits.dtype == jnp.float32
    text = str(jax.make_jaxpr(lambda p: logits_of(model16, p, batch))(state.params))
    exps = [line for line in text.splitlines() if " = exp " in line]
    assert exps and all(":f32" in line for line in exps)
    rsqrts = [line for line in text.splitlines() if " = rsqrt " in line]
    assert rsqrts and all(":f32" in line for line in rsqrts)
    np.testing.assert_allclose(
        logits[..., :VOCAB], logits_of(model32, state.params, batch)[..., :VOCAB], atol=0.1
    )
