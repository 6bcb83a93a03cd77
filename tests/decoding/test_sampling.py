"""Sampling against the softmax distribution, greedy search against an argmax rollout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.table_model import PARAMS, TableModel, sentences

from t2t_flax.decoding.sampling import Sampling, nucleus_size, random_keys
from t2t_flax.decoding.search_loop import run_search

EOS = 1
MODEL = TableModel(vocab=7)


def draw(seeds, options, caps, *, ids=None, seed=0, prefix=None, lengths=(16,), params=PARAMS):
    cache = MODEL.start(seeds, options.num_samples, lengths[0])
    ids = np.arange(len(seeds)) if ids is None else ids
    keys = random_keys(seed, ids, options.num_samples)
    result = run_search(
        MODEL, params, cache, options, sentences(caps, prefix, keys), lengths=lengths
    )
    return jax.tree.map(np.asarray, result)


def sequence(result, b: int, n: int = 0) -> tuple[int, ...]:
    return tuple(result.tokens[b, n, : result.lengths[b, n]].tolist())


def rollout(seed: int, cap: int, prefix=()) -> tuple[int, ...]:
    tokens = ()
    while len(tokens) < cap and EOS not in tokens:
        best = 1 + int(np.argmax(MODEL.log_probs(seed, tokens)[1:]))
        tokens += (prefix[len(tokens)] if len(tokens) < len(prefix) else best,)
    return tokens


def distribution(seed: int, prefix=(), temperature: float = 1.0) -> np.ndarray:
    """Softmax without the padding token, float64 [vocab]."""
    p = np.exp(MODEL.log_probs(seed, prefix) / temperature)
    p[0] = 0
    return p / p.sum()


def chi_square(tokens: np.ndarray, expected: np.ndarray) -> float:
    counts, expected_counts = (
        np.bincount(tokens.ravel(), minlength=len(expected)),
        expected * tokens.size,
    )
    possible = expected > 0
    assert counts[~possible].sum() == 0
    return float(((counts - expected_counts)[possible] ** 2 / expected_counts[possible]).sum())


def test_greedy_equals_an_argmax_rollout():
    seeds, caps = np.arange(30), np.arange(30) % 13 + 1
    result = draw(seeds, Sampling(temperature=0.0), caps)
    for b in range(30):
        expected = rollout(b, caps[b])
        assert sequence(result, b) == expected
        assert result.finished[b, 0] == (expected[-1] == EOS)
        assert (result.tokens[b, 0, len(expected) :] == 0).all()
        np.testing.assert_allclose(result.log_probs[b, 0], MODEL.score(b, expected), rtol=1e-5)
    assert result.finished.any() and not result.finished.all()
    np.testing.assert_array_equal(result.scores, result.log_probs)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_token_frequencies_follow_the_softmax(temperature):
    options = Sampling(num_samples=64, temperature=temperature)
    result = draw(np.full(128, 5), options, np.full(128, 2), seed=11)
    # 99.9% of chi-square with 5 degrees of freedom is 20.5.
    assert chi_square(result.tokens[:, :, 0], distribution(5, (), temperature)) < 20.5
    for token in range(2, 7):
        second = result.tokens[:, :, 1][result.tokens[:, :, 0] == token]
        assert second.size > 100
        assert chi_square(second, distribution(5, (token,), temperature)) < 20.5
    # Reported log-probabilities are at temperature 1.
    np.testing.assert_allclose(
        result.log_probs[3, 4], MODEL.score(5, sequence(result, 3, 4)), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"top_k": 2}, 2),
        ({"top_k": 100}, 6),
        ({"top_p": 0.6}, None),
        ({"top_p": 1e-6}, 1),
        ({"top_k": 3, "top_p": 0.7}, None),
    ],
)
def test_top_k_and_top_p_renormalize_the_likeliest_tokens(options, size):
    expected = distribution(8)
    order = np.argsort(-expected, kind="stable")
    if "top_k" in options:
        expected[order[options["top_k"] :]] = 0
        expected /= expected.sum()
    if "top_p" in options:
        count = int(np.sum(np.cumsum(expected[order]) < options["top_p"])) + 1
        expected[order[count:]] = 0
        expected /= expected.sum()
    assert 0 < (expected > 0).sum() < 7 and size in (None, (expected > 0).sum())
    result = draw(np.full(64, 8), Sampling(num_samples=64, **options), np.full(64, 1))
    assert set(np.unique(result.tokens[:, :, 0])) == set(np.flatnonzero(expected))
    assert chi_square(result.tokens[:, :, 0], expected) < 20.5


@pytest.mark.parametrize("epsilon, temperature", [(0.02, 1.0), (0.15, 0.5), (0.99, 1.0)])
def test_tokens_below_epsilon_are_never_drawn(epsilon, temperature):
    """The others follow the softmax; of none, the likeliest token is drawn."""
    expected = distribution(8, temperature=temperature)
    expected[(expected < epsilon) & (expected < expected.max())] = 0
    expected /= expected.sum()
    options = Sampling(num_samples=64, epsilon=epsilon, temperature=temperature)
    result = draw(np.full(64, 8), options, np.full(64, 1))
    assert set(np.unique(result.tokens[:, :, 0])) == set(np.flatnonzero(expected))
    assert chi_square(result.tokens[:, :, 0], expected) < 20.5
    # Reported log-probabilities are those of all tokens.
    np.testing.assert_allclose(
        result.log_probs[3, 4], MODEL.score(8, sequence(result, 3, 4)), rtol=1e-5
    )


def test_epsilon_that_excludes_nothing_changes_no_sample():
    """Bit for bit, also with the other limits."""
    for others in ({}, {"top_k": 3, "top_p": 0.8}):
        results = [
            draw(np.arange(20), Sampling(num_samples=4, epsilon=epsilon, **others), np.full(20, 9))
            for epsilon in (0.0, 1e-9)
        ]
        for a, b in zip(*map(jax.tree.leaves, results), strict=True):
            np.testing.assert_array_equal(a, b)


def test_sample_depends_only_on_seed_sentence_and_index():
    options = Sampling(num_samples=3)
    seeds, ids, caps = (
        np.arange(6),
        np.array([10, 11, 12, 13, 14, 15]),
        np.array([9, 3, 12, 1, 7, 5]),
    )
    batch = draw(seeds, options, caps, ids=ids, seed=2)
    order = np.array([4, 2, 0, 5, 1, 3])
    permuted = draw(seeds[order], options, caps[order], ids=ids[order], seed=2)
    for i, b in enumerate(order):
        alone = draw(seeds[b : b + 1], options, caps[b : b + 1], ids=ids[b : b + 1], seed=2)
        fewer = draw(
            seeds[b : b + 1], Sampling(num_samples=1), caps[b : b + 1], ids=ids[b : b + 1], seed=2
        )
        for n in range(3):
            assert sequence(batch, b, n) == sequence(permuted, i, n) == sequence(alone, 0, n)
        assert sequence(batch, b) == sequence(fewer, 0)
    # Other ids, indices and seeds draw other noise for the same model state.
    same = draw(np.zeros(40, int), Sampling(num_samples=2), np.full(40, 6))
    assert len({sequence(same, b, n) for b in range(40) for n in range(2)}) > 30
    wide = [
        draw(np.zeros(40, int), Sampling(), np.full(40, 6), seed=seed).tokens.tobytes()
        for seed in (0, 2**32, -1)
    ]
    assert len(set(wide)) == 3


def test_caps_finished_flags_and_forced_prefixes():
    prefixes = [(2, 3), (4,), (), (3, EOS), (2, 3, 4)]
    prefix_BxP = np.array([p + (0,) * (3 - len(p)) for p in prefixes], np.int32)
    caps = [6, 6, 6, 6, 2]
    result = draw(np.arange(5), Sampling(temperature=0.0), caps, prefix=prefix_BxP)
    for b, prefix in enumerate(prefixes):
        expected = rollout(b, caps[b], prefix)
        assert sequence(result, b) == expected
        assert result.finished[b, 0] == (expected[-1] == EOS)
        np.testing.assert_allclose(result.log_probs[b, 0], MODEL.score(b, expected), rtol=1e-5)
    sampled = draw(np.arange(5), Sampling(num_samples=4), caps, prefix=prefix_BxP)
    for b, prefix in enumerate(prefixes):
        for n in range(4):
            tokens = sequence(sampled, b, n)
            assert tokens[: len(prefix)] == prefix[: len(tokens)] and len(tokens) <= caps[b]
            assert (
                sampled.finished[b, n] == (tokens[-1] == EOS)
                and EOS not in tokens[:-1]
                and 0 not in tokens
            )


def test_stages_do_not_change_samples():
    options, seeds, caps = Sampling(num_samples=2, top_p=0.9), np.arange(8), np.arange(8) * 2 + 1
    params = PARAMS | {"eos": np.float32(-2.0)}
    one = draw(seeds, options, caps, params=params, seed=4)
    staged = draw(seeds, options, caps, lengths=(4, 8, 16), params=params, seed=4)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(staged), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999])
def test_nucleus_is_the_smallest_set_with_the_probability(top_p):
    rng = np.random.default_rng(1)
    smooth = rng.normal(0, 3, (6, 1000))
    # 0.5 apart: ties of up to a fifth of the vocabulary.
    tied = np.round(rng.normal(0, 1, (6, 1000)) * 2) / 2
    weights = np.exp(-np.sort(-np.concatenate([smooth, tied, np.zeros((1, 1000))])))
    weights[:, 950:] = 0
    sizes = np.asarray(nucleus_size(jnp.cumsum(weights.astype(np.float32), -1), top_p))
    for row, size in zip(weights, sizes, strict=True):
        share = np.cumsum(row) / row.sum()
        assert share[size - 1] >= top_p - 1e-5 and (size == 1 or share[size - 2] < top_p + 1e-5)
    assert sizes[-1] == pytest.approx(950 * top_p, abs=1)


def test_excluded_tokens_are_never_drawn():
    """Padding and the rows that fill up the vocabulary, whatever the uniform number is."""
    logits = np.full(300, -1e9, np.float32)
    logits[[0, 7, 299]] = 0.0
    keys = random_keys(3, np.arange(4000), 1)
    for options in (Sampling(), Sampling(top_p=0.9), Sampling(top_k=50)):
        tokens = options.draw(keys, 0, np.broadcast_to(logits, (4000, 1, 300)))
        assert set(np.unique(tokens)) == {7, 299}


@pytest.mark.parametrize("options", [Sampling(), Sampling(top_p=0.9)])
def test_largest_uniform_number_draws_an_allowed_token(monkeypatch, options):
    """Sums of many weights are not monotone: the last token's may be below the total."""
    largest = np.float32(1 - 2.0**-24)
    monkeypatch.setattr(jax.random, "uniform", lambda key: jnp.asarray(largest))
    logits = np.random.default_rng(0).normal(size=(64, 1, 8064)).astype(np.float32)
    logits[..., 8000:] = -1e9
    keys = random_keys(3, np.arange(64), 1)
    tokens = np.asarray(options.draw(keys, 0, logits))
    assert tokens.max() < 8000
    weights = np.exp(logits, dtype=np.float64)
    likelier = logits > np.take_along_axis(logits, tokens[..., None], -1)
    assert ((weights * likelier).sum(-1) / weights.sum(-1)).max() < options.top_p + 1e-4


def test_wide_vocabulary_is_sampled_from_the_softmax():
    logits = np.full(300, -np.inf, np.float32)
    likely = np.array([1, 5, 127, 128, 200, 255, 256, 299])
    logits[likely] = np.log(np.arange(1, 9) / 36)
    keys = random_keys(3, np.arange(4000), 1)
    tokens = Sampling().draw(keys, 0, np.broadcast_to(logits, (4000, 1, 300)))
    # 99.9% of chi-square with 7 degrees of freedom is 24.3.
    assert chi_square(np.asarray(tokens), np.exp(logits, dtype=np.float64)) < 24.3
