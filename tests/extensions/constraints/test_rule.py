"""Rules on tokens against exhaustive enumeration of all outputs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.ruled_steps import ruled_cache
from helpers.table_model import PARAMS, TableModel, sentences

from t2t_flax.decoding.beam_search import BeamSearch
from t2t_flax.decoding.search_loop import run_search
from t2t_flax.extensions.constraints.avoid import ANYWHERE, FIRST, WRITTEN, array
from t2t_flax.extensions.constraints.rule import Rule
from t2t_flax.extensions.shared.token_rules import RuledStep

EOS, MODEL, CAP = 1, TableModel(), 5


def search(seeds, rule, avoid=((),), *, beams=250, length=4, cap=CAP):
    inputs = sentences([cap] * len(seeds), avoid=edges_of(avoid))
    cache = ruled_cache(MODEL.start(seeds, beams, length), rule, inputs, beams, length)
    step, options = RuledStep(MODEL, rule), BeamSearch(beams, 0.6, beams)
    return jax.tree.map(np.asarray, run_search(step, PARAMS, cache, options, inputs, lengths=(length, 8)))


def edges_of(avoid):
    """A chain of edges for each sequence of tokens."""
    found = [[] for _ in avoid]
    for edges, sequences in zip(found, avoid, strict=True):
        for number, ids in enumerate(sequences):
            states = [ANYWHERE, *(FIRST + 4 * number + i for i in range(len(ids) - 1)), WRITTEN]
            edges += [edge for edge in zip(states, states[1:], ids, strict=False)]
    return array(found)


def outputs(result, b):
    return [tuple(ids[:n].tolist()) for ids, n in zip(result.tokens[b], result.lengths[b], strict=True) if n]


def every_output(cap=CAP):
    for n in range(cap):
        yield from ((*body, EOS) for body in itertools.product((2, 3, 4), repeat=n))


def ngrams(tokens, n):
    return [tokens[i : i + n] for i in range(len(tokens) - n + 1)]


def check(rule, keeps, avoid=((),)):
    """All finished outputs are exactly those that keep the rule, with the model's own scores."""
    seeds = [3 + b for b in range(len(avoid))]
    result = search(seeds, rule, avoid)
    for b, seed in enumerate(seeds):
        ended = [tokens for tokens in outputs(result, b) if tokens[-1] == EOS]
        assert set(ended) == {tokens for tokens in every_output() if keeps(tokens, avoid[b])}
        scores = [MODEL.score(seed, tokens) for tokens in ended]
        np.testing.assert_allclose(result.log_probs[b, : len(ended)], scores, rtol=1e-4)


def repeats(tokens, n):
    return len(set(ngrams(tokens, n))) < len(ngrams(tokens, n))


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
    result, theta = search([5], Rule(repetition_penalty=1.7), cap=4), 1.7

    def score(tokens):
        total = 0.0
        for i, token in enumerate(tokens):
            # The model's logits up to a constant would do without a penalty, which depends on their signs.
            logits = raw_logits(5, tokens[:i])
            for seen in set(tokens[:i]):
                logits[seen] = logits[seen] / theta if logits[seen] > 0 else logits[seen] * theta
            total += logits[token] - np.log(np.exp(logits).sum())
        return total

    found = outputs(result, 0)
    assert len(found) > 100
    np.testing.assert_allclose(result.log_probs[0, : len(found)], [score(tokens) for tokens in found], rtol=1e-4)


def raw_logits(seed, prefix):
    cache = MODEL.start([seed], 1, 8)
    for position, token in enumerate((0, *prefix)):
        logits, cache = MODEL(PARAMS, jnp.full((1, 1), token), jnp.int32(position), cache)
    return np.asarray(logits, np.float64)[0, 0]
