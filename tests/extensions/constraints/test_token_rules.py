"""Rules on the next token against exhaustive enumeration: no forbidden token is written, and scores stay the model's own."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.ruled_steps import ruled_cache
from helpers.table_model import PARAMS, TableModel, sentences

from t2t_flax.decoding.beam_search import BeamSearch
from t2t_flax.decoding.sampling import Sampling, random_keys
from t2t_flax.decoding.search_loop import run_search
from t2t_flax.extensions.constraints.rule import Rule
from t2t_flax.extensions.shared.token_rules import RuledStep, forbid

EOS, MODEL = 1, TableModel()


@dataclasses.dataclass(frozen=True)
class OddSum:
    """Outputs end only where the sum of their tokens plus a number of the sentence is odd, and no token is written twice in a
    row: a state of each hypothesis without a time axis, and one with it.
    """

    def start(self, sentences, width, length):
        shape = (len(sentences.caps_B), width)
        return {"sum": jnp.zeros(shape, jnp.int32), "tokens": jnp.zeros((*shape, length), jnp.int32)}

    def apply(self, sentences, state, tokens_BxK, position, logits_BxKxV):
        last_BxK = jnp.where(position == 0, 0, tokens_BxK)
        sum_BxK = state["sum"] + last_BxK
        history = state["tokens"].at[:, :, position].set(last_BxK)
        even_BxK = (sum_BxK + sentences.more["number"][:, None]) % 2 == 0
        ids = jnp.arange(logits_BxKxV.shape[-1])
        same_BxKxV = ids == history[:, :, position][..., None]
        forbidden_BxKxV = (even_BxK[..., None] & (ids == EOS)) | same_BxKxV & (position > 0)
        return forbid(logits_BxKxV, forbidden_BxKxV), {"sum": sum_BxK, "tokens": history}


def keeps(tokens: tuple[int, ...], number: int, free: int = 0) -> bool:
    """Whether an output keeps the rule after its first `free` tokens."""
    repeats = any(a == b for i, (a, b) in enumerate(itertools.pairwise(tokens), 1) if i >= free)
    ends = tokens[-1] == EOS and len(tokens) > free
    return not repeats and not (ends and (sum(tokens[:-1]) + number) % 2 == 0)


def search(seeds, numbers, options, caps, *, prefix=None, keys=None, length=4, put=jnp.asarray, rule=None, more=()):
    """more: rules under `rule`."""
    cache, step = put(MODEL.start(seeds, options.width, length)), MODEL
    inputs = put(sentences(caps, prefix, keys, number=numbers))
    rule = rule or OddSum()
    for one in (*more, rule):
        cache, step = ruled_cache(cache, one, inputs, options.width, length), RuledStep(step, one)
    result = run_search(step, PARAMS, cache, options, inputs, lengths=(length, 16))
    return jax.tree.map(np.asarray, result)


def outputs(result, b):
    return [tuple(ids[:n].tolist()) for ids, n in zip(result.tokens[b], result.lengths[b], strict=True) if n]


def all_outputs(cap):
    for n in range(cap):
        yield from ((*body, EOS) for body in itertools.product((2, 3, 4), repeat=n))
    yield from itertools.product((2, 3, 4), repeat=cap)


def same(tree):
    return jax.tree.map(lambda x: x, tree)


def test_two_rules_hold_together():
    result = search([3, 4], [0, 1], BeamSearch(100, 0.6, 100), [4] * 2, put=same, more=(Rule(suppress=(3,)),))
    for b in range(2):
        kept = {tokens for tokens in all_outputs(4) if keeps(tokens, b) and 3 not in tokens}
        assert set(outputs(result, b)) == kept and len(kept) > 1


def test_the_state_of_a_rule_follows_the_hypotheses_through_growing_buffers():
    seeds, numbers, caps = np.arange(40), np.arange(40) % 2, np.arange(40) % 12 + 1
    result = search(seeds, numbers, BeamSearch(3, 0.6, 3), caps, length=2, put=same)
    for b in range(40):
        assert all(keeps(tokens, numbers[b]) for tokens in outputs(result, b))
        scores = [MODEL.score(seeds[b], tokens) for tokens in outputs(result, b)]
        np.testing.assert_allclose(result.log_probs[b, : len(scores)], scores, rtol=1e-5)


@pytest.mark.parametrize("options", [Sampling(5), Sampling(5, top_p=0.9), Sampling(5, top_k=2), Sampling(1, 0.0)])
def test_samples_keep_a_rule_and_have_the_scores_of_the_model(options):
    seeds, numbers = np.arange(40), np.arange(40) % 2
    keys = random_keys(1, np.arange(40), options.width)
    result = search(seeds, numbers, options, [6] * 40, keys=keys, put=same)
    for b in range(40):
        assert all(keeps(tokens, numbers[b]) for tokens in outputs(result, b))
        scores = [MODEL.score(seeds[b], tokens) for tokens in outputs(result, b)]
        np.testing.assert_allclose(result.log_probs[b], scores, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class Stuck:
    """Odd sentences cannot go on after two tokens, others not end before."""

    def start(self, sentences, width, length):
        return {}

    def apply(self, sentences, state, tokens_BxK, position, logits_BxKxV):
        stuck_B = (sentences.more["number"] % 2 == 1) & (position >= 2)
        early_V = (jnp.arange(logits_BxKxV.shape[-1]) == EOS) & (position < 2)
        return forbid(logits_BxKxV, stuck_B[:, None, None] | early_V | jnp.zeros(logits_BxKxV.shape, bool)), state


@pytest.mark.parametrize(
    "options", [Sampling(3), Sampling(3, top_p=0.9), Sampling(3, top_k=2), Sampling(3, epsilon=0.1), Sampling(1, 0.0),
                BeamSearch(3, 0.6, 3)],
    ids=str,
)  # fmt: skip
def test_a_sentence_that_no_token_can_follow_has_no_hypothesis(options):
    keys = random_keys(1, np.arange(4), options.width)
    result = search(range(4), range(4), options, [6] * 4, keys=keys, put=same, rule=Stuck())
    assert (result.lengths[1::2] == 0).all() and (result.tokens[1::2] == 0).all() and not result.finished[1::2].any()
    assert (result.scores[1::2] == -np.inf).all() and (result.log_probs[1::2] == -np.inf).all()
    assert (result.lengths[::2] > 2).all() and np.isfinite(result.scores[::2]).all()


def test_no_rule_applies_to_forced_tokens_but_it_counts_them():
    prefix = [(2, 2), (3, 3), (4, 0), (2, EOS)]
    result = search([7, 8, 9, 10], [0, 1, 0, 0], BeamSearch(3, 0.6, 3), [6] * 4, prefix=prefix, put=same)
    for b, number in enumerate((0, 1, 0, 0)):
        forced = tuple(token for token in prefix[b] if token)
        found = outputs(result, b)
        assert found and all(tokens[: len(forced)] == forced for tokens in found)
        assert all(keeps(tokens, number, len(forced)) for tokens in found)
        scores = [MODEL.score(7 + b, tokens) for tokens in found]
        np.testing.assert_allclose(result.log_probs[b, : len(scores)], scores, rtol=1e-5)


def test_a_rule_that_forbids_nothing_changes_no_bit():
    logits = jax.random.normal(jax.random.key(0), (3, 4, 300))
    np.testing.assert_array_equal(forbid(logits, jnp.zeros(logits.shape, bool)), logits)
    forbidden = jax.random.bernoulli(jax.random.key(1), 0.5, logits.shape)
    left = np.asarray(forbid(logits, forbidden))
    allowed = ~np.asarray(forbidden) & (np.arange(300) > 0)
    np.testing.assert_array_equal(left[allowed], np.asarray(logits)[allowed])
    np.testing.assert_allclose(jax.nn.logsumexp(left, -1), jax.nn.logsumexp(logits, -1), rtol=1e-6)
