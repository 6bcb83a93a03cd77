"""Constrained beam search against exhaustive enumeration of all outputs."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh
from helpers.table_model import PARAMS, TableModel, every_output, outputs, sentences
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.decoding.beam_search import BeamSearch, length_penalty
from t2t_flax.decoding.search_loop import run_search
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.constraints.constrained import ConstrainedBeam

EOS, MODEL = 1, TableModel()
CONTINUES = bytes([1, 1, 1, 1, 0])
"""Token 4 continues the word before it."""


def must_array(sentences, shape=(3, 2, 4)):
    out = np.zeros((len(sentences), *shape), np.int32)
    for b, phrases in enumerate(sentences):
        for c, forms in enumerate(phrases):
            for s, form in enumerate(forms):
                out[b, c, s, : len(form)] = form
    return out


def search(
    seeds, phrases, options, caps, *, lengths=(4, 16), prefix=None, put=lambda x: x, params=PARAMS
):
    cache = put(MODEL.start(seeds, options.width, lengths[0]))
    inputs = put(sentences(caps, prefix, must=must_array(phrases)))
    result = run_search(MODEL, params, cache, options, inputs, lengths=lengths)
    return jax.tree.map(np.asarray, result)


def places(tokens, form, begins):
    """(start, end) of each occurrence of a form that no token continues."""
    for start in range(len(tokens) - len(form) + 1):
        end = start + len(form)
        if tokens[start:end] == form and (end == len(tokens) or not begins or begins[tokens[end]]):
            yield start, end


def holds(tokens, phrases, ordered=False, begins=b""):
    """Whether an output contains one form of each phrase."""
    if not ordered:
        return all(any(any(places(tokens, form, begins)) for form in forms) for forms in phrases)

    def after(start, rest):
        if not rest:
            return True
        found = [place for form in rest[0] for place in places(tokens, form, begins)]
        return any(first >= start and after(end, rest[1:]) for first, end in found)

    return after(0, phrases)


def apart(tokens, phrases, begins, taken=()):
    """Whether an output contains one form of each phrase, none of which shares a token."""
    if not phrases:
        return True
    return any(
        apart(tokens, phrases[1:], begins, (*taken, (start, end)))
        for form in phrases[0]
        for start, end in places(tokens, form, begins)
        if all(end <= first or last <= start for first, last in taken)
    )


FORMS = st.lists(
    st.lists(st.sampled_from((2, 3, 4)), min_size=1, max_size=3).map(tuple), min_size=1, max_size=2
)
PHRASES = st.lists(FORMS, max_size=3)


@settings(max_examples=15)
@given(st.lists(PHRASES, min_size=3, max_size=3), st.booleans(), st.sampled_from((b"", CONTINUES)))
def test_a_wide_beam_finds_the_outputs_that_have_room_for_the_phrases(phrases, ordered, begins):
    cap, seeds = 5, [3, 4, 5]
    options = ConstrainedBeam(BeamSearch(370, 0.6, 370), ordered, begins)
    result = search(seeds, phrases, options, [cap] * 3, lengths=(5,))
    for b, seed in enumerate(seeds):
        kept = [
            tokens for tokens in every_output(cap) if holds(tokens, phrases[b], ordered, begins)
        ]
        found = outputs(result, b)
        ended = [tokens for tokens in found if tokens[-1] == EOS]
        possible = {tokens for tokens in kept if tokens[-1] == EOS}
        assert set(ended) <= possible
        # Near the cap the search leaves room for all phrases as if they shared no token.
        missed = possible - set(ended)
        assert not [tokens for tokens in missed if apart(tokens, phrases[b], begins)]
        scores = [MODEL.score(seed, tokens) / length_penalty(len(tokens), 0.6) for tokens in ended]
        assert scores == sorted(scores, reverse=True)
        needed = sum(min(map(len, forms)) for forms in phrases[b])
        if needed <= cap:  # what is cut off at the cap contains them too
            assert set(found) <= set(kept)
        np.testing.assert_allclose(
            result.log_probs[b, : len(found)],
            [MODEL.score(seed, tokens) for tokens in found],
            rtol=1e-4,
        )


@settings(max_examples=10)
@given(
    st.lists(PHRASES, min_size=4, max_size=4),
    st.booleans(),
    st.sampled_from((b"", CONTINUES)),
    st.sampled_from((1, 2, 4)),
    st.integers(0, 3),
)
def test_a_narrow_beam_returns_only_outputs_that_contain_the_phrases_if_there_is_room(
    phrases, ordered, begins, beams, spare
):
    caps = np.array(
        [sum(min(map(len, forms)) for forms in of_line) + 1 + spare for of_line in phrases],
        np.int32,
    )
    seeds = np.arange(4) + 17
    options = ConstrainedBeam(BeamSearch(beams, 0.6, 1), ordered, begins)
    result = search(seeds, phrases, options, caps)
    for b, seed in enumerate(seeds):
        (tokens,) = outputs(result, b)
        assert holds(tokens, phrases[b], ordered, begins), (tokens, phrases[b])
        np.testing.assert_allclose(result.log_probs[b, 0], MODEL.score(seed, tokens), rtol=1e-4)


def test_phrases_that_no_cap_has_room_for_are_written_as_far_as_they_go():
    result = search(
        [5], [[[(2, 3, 2, 3)], [(4, 4, 4)]]], ConstrainedBeam(BeamSearch(3, 0.6, 1)), [5]
    )
    ((tokens),) = outputs(result, 0)
    assert len(tokens) == 5 and not result.finished[0, 0]


@pytest.mark.parametrize("early_stopping", ["exact", "beam_full", "top_finished"])
def test_without_phrases_it_is_beam_search_bit_for_bit(early_stopping):
    seeds, caps, none = np.arange(60), np.arange(60) % 12 + 1, [[]] * 60
    for eos in (0.0, 2.0):
        params = PARAMS | {"eos": np.float32(eos)}
        plain = BeamSearch(3, 0.6, 3, early_stopping=early_stopping)
        expected = run_search(
            MODEL, params, MODEL.start(seeds, 3, 4), plain, sentences(caps), lengths=(4, 16)
        )
        found = search(seeds, none, ConstrainedBeam(plain), caps, params=params)
        for field in dataclasses.fields(found):
            np.testing.assert_array_equal(
                getattr(found, field.name), np.asarray(getattr(expected, field.name))
            )


def test_forced_tokens_count():
    prefix = np.array([[2, 3], [2, 0]], np.int32)
    phrases = [[[(2, 3)], [(3, 4)]], [[(2, 3)]]]
    result = search([8, 9], phrases, ConstrainedBeam(BeamSearch(3, 0.6, 3)), [6, 6], prefix=prefix)
    for b in range(2):
        for tokens in outputs(result, b):
            forced = tuple(token for token in prefix[b].tolist() if token)
            assert tokens[: len(forced)] == forced and holds(tokens, phrases[b])


def test_a_sharded_batch_gives_the_same_result():
    mesh, options = devices_mesh(data=4), ConstrainedBeam(BeamSearch(3, 0.6, 2))
    phrases, caps = [[[(2, 3)]], [], [[(4, 4), (3,)]], [[(2, 2)], [(3,)]]] * 2, np.arange(8) + 5
    whole = search(np.arange(8), phrases, options, caps)
    with mesh_lib.use(mesh):
        rows = mesh_lib.named(mesh, mesh_lib.ROWS)
        split = search(
            np.arange(8), phrases, options, caps, put=lambda tree: jax.device_put(tree, rows)
        )
    np.testing.assert_array_equal(whole.tokens, split.tokens)
