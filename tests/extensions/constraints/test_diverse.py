"""Diverse beam search against a NumPy search that advances one group after the other."""

import jax
import numpy as np
import pytest
from helpers.table_model import PARAMS, TableModel, sentences

from t2t_flax.decoding.beam_search import BeamSearch, length_penalty
from t2t_flax.decoding.search_loop import run_search
from t2t_flax.extensions.constraints.diverse import DiverseBeam

EOS, MODEL = 1, TableModel(vocab=7)


def search(seeds, options, caps, params=PARAMS):
    cache = MODEL.start(seeds, options.width, 4)
    return jax.tree.map(np.asarray, run_search(MODEL, params, cache, options, sentences(caps), lengths=(4, 16)))


def outputs(result, b):
    return [tuple(ids[:n].tolist()) for ids, n in zip(result.tokens[b], result.lengths[b], strict=True) if n]


def reference(seed, size, groups, diversity, cap):
    """[(score, tokens)] of the hypotheses of all groups, finished ones first."""
    alive, finished = [[(0.0, ())] for _ in range(groups)], [[] for _ in range(groups)]
    over = [False] * groups
    for step in range(cap):
        used = []
        for g in range(groups):
            if over[g]:  # other groups no longer avoid its tokens
                continue
            candidates = [
                (score + MODEL.log_probs(seed, tokens)[v], (*tokens, v))
                for score, tokens in alive[g]
                for v in range(1, MODEL.vocab)
            ]
            candidates.sort(key=lambda c: -(c[0] - diversity * used.count(c[1][-1])))
            candidates = candidates[: 2 * size]
            ended = [(p / length_penalty(step + 1, 0.6), t) for p, t in candidates if t[-1] == EOS]
            finished[g] = sorted(finished[g] + ended, key=lambda c: -c[0])[:size]
            alive[g] = [c for c in candidates if c[1][-1] != EOS][:size]
            used += [t[-1] for _, t in alive[g]]
            best = max(p for p, _ in alive[g]) / length_penalty(cap, 0.6)
            over[g] = len(finished[g]) == size and finished[g][-1][0] > best
    every = []
    for g in range(groups):
        cut = sorted(((p / length_penalty(cap, 0.6), t) for p, t in alive[g]), key=lambda c: -c[0])
        every += ([(0, *f) for f in finished[g]] + [(1, *c) for c in cut])[:size]
    return [(score, tokens) for _, score, tokens in sorted(every, key=lambda c: (c[0], -c[1]))]


@pytest.mark.parametrize("size, groups", [(1, 3), (2, 2), (2, 3)])
@pytest.mark.parametrize("diversity", [0.3, 2.0])
def test_equals_the_reference(size, groups, diversity):
    seeds = np.arange(20)
    options = DiverseBeam(BeamSearch(size, 0.6, size), groups, diversity, size * groups)
    result = search(seeds, options, [5] * 20)
    for b, seed in enumerate(seeds):
        expected = reference(seed, size, groups, diversity, 5)
        assert sorted(outputs(result, b)) == sorted(tokens for _, tokens in expected)
        np.testing.assert_allclose(result.scores[b, 0], expected[0][0], rtol=1e-5)
        scores = [MODEL.score(seed, tokens) for tokens in outputs(result, b)]
        np.testing.assert_allclose(result.log_probs[b, : len(scores)], scores, rtol=1e-5)


def test_one_group_is_beam_search():
    seeds, caps = np.arange(40), np.arange(40) % 12 + 1
    plain = BeamSearch(3, 0.6, 3)
    expected = run_search(MODEL, PARAMS, MODEL.start(seeds, 3, 4), plain, sentences(caps), lengths=(4, 16))
    found = search(seeds, DiverseBeam(plain, 1, 0.5, 3), caps)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)


def test_diversity_makes_first_tokens_differ():
    result = search(
        np.arange(30), DiverseBeam(BeamSearch(1, 0.6, 1), 4, 50.0, 4), [6] * 30, PARAMS | {"eos": np.float32(-30.0)}
    )
    for b in range(30):
        assert len({tokens[0] for tokens in outputs(result, b)}) == 4
