"""Rules on the next token against exhaustive enumeration.

No forbidden token is written, and scores stay the model's own.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.ruled_steps import ruled_cache
from helpers.table_model import PARAMS, TableModel, every_output, outputs, sentences

from t2t_flax.decoding.beam_search import BeamSearch
from t2t_flax.decoding.sampling import Sampling, random_keys
from t2t_flax.decoding.search_loop import run_search
from t2t_flax.extensions.constraints.avoid import ANYWHERE, FIRST, WRITTEN, array
from t2t_flax.extensions.constraints.rule import Rule
from t2t_flax.extensions.shared.token_rules import RuledStep, forbid

EOS, MODEL = 1, TableModel()


@dataclasses.dataclass(frozen=True)
class OddSum:
    """Rule with two states of each hypothesis, one of them with a time axis.

    Outputs end only where the sum of their tokens plus a number of the sentence is odd, and no
    token is written twice in a row.
    """

    def start(self, sentences, width, length):
        shape = (len(sentences.caps_B), width)
        return {
            "sum": jnp.zeros(shape, jnp.int32),
            "tokens": jnp.zeros((*shape, length), jnp.int32),
        }

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


def search(
    seeds,
    numbers,
    options,
    caps,
    *,
    prefix=None,
    keys=None,
    length=4,
    rule=None,
    more=(),
    avoid=None,
):
    """more: rules under `rule`."""
    cache, step = MODEL.start(seeds, options.width, length), MODEL
    inputs = sentences(
        caps, prefix, keys, number=numbers, avoid=edges_of(avoid or [()] * len(seeds))
    )
    for one in (*more, rule or OddSum()):
        cache, step = ruled_cache(cache, one, inputs, options.width, length), RuledStep(step, one)
    result = run_search(step, PARAMS, cache, options, inputs, lengths=(length, 16))
    return jax.tree.map(np.asarray, result)


def edges_of(avoid):
    """A chain of edges for each sequence of tokens."""
    found = [[] for _ in avoid]
    for edges, sequences in zip(found, avoid, strict=True):
        for number, ids in enumerate(sequences):
            states = [ANYWHERE, *(FIRST + 4 * number + i for i in range(len(ids) - 1)), WRITTEN]
            edges += [edge for edge in zip(states, states[1:], ids, strict=False)]
    return array(found)


def ngrams(tokens, n):
    return [tokens[i : i + n] for i in range(len(tokens) - n + 1)]


def repeats(tokens, n):
    return len(set(ngrams(tokens, n))) < len(ngrams(tokens, n))


def check(rule, keeps, avoid=((),)):
    """All finished outputs are exactly those that keep the rule, with the model's own scores."""
    seeds = [3 + b for b in range(len(avoid))]
    result = search(
        seeds, [0] * len(seeds), BeamSearch(250, 0.6, 250), [5] * len(seeds), rule=rule, avoid=avoid
    )
    for b, seed in enumerate(seeds):
        ended = [tokens for tokens in outputs(result, b) if tokens[-1] == EOS]
        assert set(ended) == {
            tokens for tokens in every_output(5) if tokens[-1] == EOS and keeps(tokens, avoid[b])
        }
        scores = [MODEL.score(seed, tokens) for tokens in ended]
        np.testing.assert_allclose(result.log_probs[b, : len(ended)], scores, rtol=1e-4)


@pytest.mark.parametrize(
    "rule, keeps",
    [(Rule(no_repeat_ngram=n), lambda tokens, n=n: not repeats(tokens, n)) for n in (1, 2, 3)]
    + [
        (Rule(min_length=3), lambda tokens: len(tokens) > 3),
        (Rule(suppress=(2, 4)), lambda tokens: not {2, 4} & set(tokens)),
        (
            Rule(no_repeat_ngram=2, min_length=2, suppress=(4,)),
            lambda tokens: len(tokens) > 2 and 4 not in tokens and not repeats(tokens, 2),
        ),
    ],
)
def test_outputs_are_those_that_keep_a_rule(rule, keeps):
    check(rule, lambda tokens, _: keeps(tokens))


def test_sequences_to_avoid_are_not_written():
    avoid = [((2, 3), (4,)), ((2, 2, 3), (3, 2, 2)), ((3, 3, 3, 3),), ()]

    def keeps(tokens, sequences):
        return not any(ids in ngrams(tokens, len(ids)) for ids in sequences)

    check(Rule(ends_word=bytes([1]) * MODEL.vocab), keeps, avoid)


def test_scores_are_those_of_the_penalized_distribution():
    theta = 1.7
    result = search([5], [0], BeamSearch(250, 0.6, 250), [4], rule=Rule(repetition_penalty=theta))

    def score(tokens):
        total = 0.0
        for i, token in enumerate(tokens):
            # The model's logits up to a constant would do without a penalty, which depends on their
            # signs.
            logits = raw_logits(5, tokens[:i])
            for seen in set(tokens[:i]):
                logits[seen] = logits[seen] / theta if logits[seen] > 0 else logits[seen] * theta
            total += logits[token] - np.log(np.exp(logits).sum())
        return total

    found = outputs(result, 0)
    assert len(found) > 100
    np.testing.assert_allclose(
        result.log_probs[0, : len(found)], [score(tokens) for tokens in found], rtol=1e-4
    )


def raw_logits(seed, prefix):
    cache = MODEL.start([seed], 1, 8)
    for position, token in enumerate((0, *prefix)):
        logits, cache = MODEL(PARAMS, jnp.full((1, 1), token), jnp.int32(position), cache)
    return np.asarray(logits, np.float64)[0, 0]


def test_two_rules_hold_together():
    result = search([3, 4], [0, 1], BeamSearch(100, 0.6, 100), [4] * 2, more=(Rule(suppress=(3,)),))
    for b in range(2):
        kept = {tokens for tokens in every_output(4) if keeps(tokens, b) and 3 not in tokens}
        assert set(outputs(result, b)) == kept and len(kept) > 1


def test_the_state_of_a_rule_follows_the_hypotheses_through_growing_buffers():
    seeds, numbers, caps = np.arange(40), np.arange(40) % 2, np.arange(40) % 12 + 1
    result = search(seeds, numbers, BeamSearch(3, 0.6, 3), caps, length=2)
    for b in range(40):
        assert all(keeps(tokens, numbers[b]) for tokens in outputs(result, b))
        scores = [MODEL.score(seeds[b], tokens) for tokens in outputs(result, b)]
        np.testing.assert_allclose(result.log_probs[b, : len(scores)], scores, rtol=1e-5)


@pytest.mark.parametrize(
    "options", [Sampling(5), Sampling(5, top_p=0.9), Sampling(5, top_k=2), Sampling(1, 0.0)]
)
def test_samples_keep_a_rule_and_have_the_scores_of_the_model(options):
    seeds, numbers = np.arange(40), np.arange(40) % 2
    keys = random_keys(1, np.arange(40), options.width)
    result = search(seeds, numbers, options, [6] * 40, keys=keys)
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
        return forbid(
            logits_BxKxV, stuck_B[:, None, None] | early_V | jnp.zeros(logits_BxKxV.shape, bool)
        ), state


@pytest.mark.parametrize(
    "options", [Sampling(3), Sampling(3, top_p=0.9), Sampling(3, top_k=2), Sampling(3, epsilon=0.1), Sampling(1, 0.0),
                BeamSearch(3, 0.6, 3)],
    ids=str,
)  # fmt: skip
def test_a_sentence_that_no_token_can_follow_has_no_hypothesis(options):
    keys = random_keys(1, np.arange(4), options.width)
    result = search(range(4), range(4), options, [6] * 4, keys=keys, rule=Stuck())
    assert (
        (result.lengths[1::2] == 0).all()
        and (result.tokens[1::2] == 0).all()
        and not result.finished[1::2].any()
    )
    assert (result.scores[1::2] == -np.inf).all() and (result.log_probs[1::2] == -np.inf).all()
    assert (result.lengths[::2] > 2).all() and np.isfinite(result.scores[::2]).all()


def test_no_rule_applies_to_forced_tokens_but_it_counts_them():
    prefix = [(2, 2), (3, 3), (4, 0), (2, EOS)]
    result = search([7, 8, 9, 10], [0, 1, 0, 0], BeamSearch(3, 0.6, 3), [6] * 4, prefix=prefix)
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
