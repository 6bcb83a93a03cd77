"""Models of different shapes as one model, against NumPy means and exhaustive search."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, rows_alone, small_config
from helpers.table_model import sentences

from t2t_flax.decoding.beam_search import BeamSearch
from t2t_flax.decoding.search_loop import run_search
from t2t_flax.decoding.translator import DecodeStep, start_search
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.ensembles.ensemble import Ensemble, mean_of

VOCAB, EOS = 6, 1
SHAPES = (
    dict(),
    dict(num_decoder_layers=2, d_model=24, d_ff=40, pad_vocab_to_multiple=5, norm_placement="pre"),
    dict(mixer="lstm", num_encoder_layers=2, tie_embeddings="none"),
)
WEIGHTS = (0.5, 0.2, 0.3)
MEANS = ("probabilities", "log_probabilities")


@pytest.fixture(scope="module")
def members():
    """[(model, parameters)], with logits that are far from uniform."""
    made = []
    for seed, shape in enumerate(SHAPES):
        config = small_config(model=dict(dropout=0.0) | shape, seed=dict(init=seed))
        model, _, state, _ = model_and_state(config, vocab=VOCAB)
        made.append((model, jax.tree.map(lambda x: 2.0 * x, state.params)))
    return made


def together(members, mean: str):
    ensemble = Ensemble(tuple(model for model, _ in members), WEIGHTS, mean)
    return ensemble, {f"members_{i}": params for i, (_, params) in enumerate(members)}


def softmax(x):
    x = np.exp(np.asarray(x, np.float64)[..., :VOCAB])
    return x / x.sum(-1, keepdims=True)


def expected_log_probs(members, mean: str, pairs, length: int = 24) -> np.ndarray:
    """float64 [pairs, length, vocab].

    Log-probabilities of each target token, from each model's own forward pass.
    """
    batch = rows_alone(pairs, length)
    each = [softmax(jax.jit(model.apply)({"params": params}, batch)) for model, params in members]
    if mean == "probabilities":
        return np.log(sum(w * p for w, p in zip(WEIGHTS, each, strict=True)))
    product = np.prod([p**w for w, p in zip(WEIGHTS, each, strict=True)], axis=0)
    return np.log(product / product.sum(-1, keepdims=True))


@pytest.mark.parametrize("mean", MEANS)
def test_steps_equal_the_mean_of_the_models(members, mean):
    """Token by token with a cache for each, in scoring, and for hypotheses that change places."""
    ensemble, params = together(members, mean)
    sources = [[3, 4, 2, EOS], [5, EOS]]
    targets = [[2, 5, 4, 3], [3, 2, 2, EOS]]
    rows = [(source, target) for source in sources for target in targets]
    expected = expected_log_probs(members, mean, rows)
    batch = rows_alone(rows)

    @jax.jit
    def log_probs(params):
        hidden = ensemble.apply({"params": params}, batch, method="hidden")
        return jax.nn.log_softmax(ensemble.apply({"params": params}, hidden, method="logits"))

    np.testing.assert_allclose(log_probs(params)[:, :4, :VOCAB], expected[:, :4], atol=2e-5)
    source_BxS = jnp.asarray(rows_alone([(s, s) for s in sources])["source"])
    with mesh_lib.use(devices_mesh()):
        cache = start_search(ensemble, params, source_BxS, 2, 8)
    step = jax.jit(DecodeStep(ensemble))
    for position in range(4):
        tokens = (
            jnp.array([[target[position - 1] for target in targets]] * 2)
            if position
            else jnp.zeros((2, 2), int)
        )
        logits, cache = step(params, tokens, jnp.int32(position), cache)
        got = jax.nn.log_softmax(logits)[..., :VOCAB].reshape(4, VOCAB)
        np.testing.assert_allclose(got, expected[:, position], atol=2e-5)
        assert (logits[..., VOCAB:] < -1e8).all()


@pytest.mark.slow
@pytest.mark.parametrize("mean", MEANS)
def test_beam_search_equals_exhaustive_search(members, mean):
    cap, source = 3, [4, 3, 5, EOS]
    bodies = [body for n in range(cap) for body in itertools.product(range(2, VOCAB), repeat=n)]
    outputs = [(*body, EOS) for body in bodies]
    log_probs = expected_log_probs(members, mean, [(source, list(output)) for output in outputs])
    totals = [
        sum(row[i, token] for i, token in enumerate(output))
        for row, output in zip(log_probs, outputs, strict=True)
    ]
    scores = [
        total / ((5 + len(output)) / 6) ** 0.6
        for total, output in zip(totals, outputs, strict=True)
    ]
    best = sorted(zip(scores, outputs, strict=True), reverse=True)[:5]
    ensemble, params = together(members, mean)
    beams = (VOCAB - 2) ** 2 * 2
    with mesh_lib.use(devices_mesh()):
        cache = start_search(ensemble, params, jnp.asarray([source]), beams, 8)
        result = run_search(
            DecodeStep(ensemble),
            params,
            cache,
            BeamSearch(beams, 0.6, 5),
            sentences([cap]),
            lengths=(8,),
        )
    found = [
        tuple(ids[:n].tolist()) for ids, n in zip(result.tokens[0], result.lengths[0], strict=True)
    ]
    assert found == [output for _, output in best]
    np.testing.assert_allclose(result.scores[0], [score for score, _ in best], rtol=1e-4)


@pytest.mark.parametrize("mean", MEANS)
def test_mean_of_logits(mean):
    """Of rows that pad the vocabulary only as many are left as the smallest table has.

    Equal models give their own mean.
    """
    rng = np.random.default_rng(3)
    a, b = rng.normal(0, 4, (5, 8)).astype(np.float32), rng.normal(0, 4, (5, 16)).astype(np.float32)
    a[:, 7:] = b[:, 7:] = -1e9
    got = mean_of([a, b], (0.25, 0.75), mean)
    assert got.shape == (5, 8) and (got[:, 7] < -1e8).all()
    p, q = (np.exp(np.asarray(jax.nn.log_softmax(x), np.float64))[:, :7] for x in (a, b))
    want = 0.25 * p + 0.75 * q if mean == "probabilities" else p**0.25 * q**0.75
    np.testing.assert_allclose(
        jax.nn.softmax(got)[:, :7], want / want.sum(-1, keepdims=True), rtol=1e-4
    )
    np.testing.assert_allclose(
        jax.nn.softmax(mean_of([a, a], (0.1, 0.9), mean)), jax.nn.softmax(a), rtol=1e-4
    )
