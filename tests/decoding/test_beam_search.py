"""Beam search against exhaustive enumeration and a NumPy beam search without early stopping."""

import itertools

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh
from helpers.table_model import PARAMS, TableModel, sentences

from t2t_flax.decoding.beam_search import BeamSearch
from t2t_flax.decoding.search_loop import grow, next_length, run_search
from t2t_flax.distributed import mesh as mesh_lib

EOS = 1
MODEL = TableModel()


def search(seeds, options, caps, *, prefix=None, lengths=(12, 16), params=PARAMS, model=MODEL):
    cache = model.start(seeds, options.beam_size, lengths[0])
    result = run_search(model, params, cache, options, sentences(caps, prefix), lengths=lengths)
    return jax.tree.map(np.asarray, result)


def hypotheses(result, b: int) -> list[tuple[int, ...]]:
    return [
        tuple(ids[:n].tolist()) for ids, n in zip(result.tokens[b], result.lengths[b], strict=True)
    ]


def reference_search(
    seed: int, beam_size: int, alpha: float, cap: int, prefix=(), params=PARAMS, model=MODEL
):
    """Return [(score, tokens, finished)]: finished hypotheses, best first, then the alive ones."""
    alive, finished = [(0.0, ())], []
    for step in range(cap):
        forced = prefix[step] if step < len(prefix) else 0
        allowed = [forced] if forced else range(1, model.vocab)
        candidates = [
            (score + model.log_probs(seed, tokens, params)[v], (*tokens, v))
            for score, tokens in alive
            for v in allowed
        ]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * beam_size]
        finished += [(p / penalty(step + 1, alpha), t) for p, t in candidates if t[-1] == EOS]
        finished = sorted(finished, key=lambda c: -c[0])[:beam_size]
        alive = [c for c in candidates if c[1][-1] != EOS][:beam_size]
    rest = [(p / penalty(cap, alpha), t, False) for p, t in alive]
    return [(p, t, True) for p, t in finished] + rest


def penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha


def assert_equals_reference(result, seeds, options, caps, **search_args):
    for b, (seed, cap) in enumerate(zip(seeds, caps, strict=True)):
        expected = reference_search(seed, options.beam_size, options.alpha, cap, **search_args)[
            : options.n_best
        ]
        assert hypotheses(result, b)[: len(expected)] == [tokens for _, tokens, _ in expected]
        assert result.finished[b].tolist()[: len(expected)] == [
            finished for _, _, finished in expected
        ]
        np.testing.assert_allclose(
            result.scores[b, : len(expected)], [score for score, *_ in expected], rtol=1e-5
        )
        assert (result.scores[b, len(expected) :] == -np.inf).all()
        assert (result.lengths[b, len(expected) :] == 0).all()


def test_wide_beam_equals_exhaustive_enumeration():
    cap, alpha, seeds = 4, 0.6, [3, 4, 5]
    result = search(seeds, BeamSearch(81, alpha, 60), [cap] * 3, lengths=(4,))
    for b, seed in enumerate(seeds):
        bodies = [body for n in range(cap) for body in itertools.product((2, 3, 4), repeat=n)]
        ended = sorted(
            (-MODEL.score(seed, (*t, EOS)) / penalty(len(t) + 1, alpha), (*t, EOS)) for t in bodies
        )
        cut = sorted((-MODEL.score(seed, t), t) for t in itertools.product((2, 3, 4), repeat=cap))
        expected = [t for _, t in ended] + [t for _, t in cut]
        assert len(ended) == 40
        assert hypotheses(result, b) == expected[:60]
        assert result.finished[b].tolist() == [True] * 40 + [False] * 20
        np.testing.assert_allclose(
            result.log_probs[b], [MODEL.score(seed, t) for t in expected[:60]], rtol=1e-5
        )
        lengths = result.lengths[b]
        np.testing.assert_allclose(
            result.scores[b], result.log_probs[b] / penalty(lengths, alpha), rtol=1e-6
        )


@pytest.mark.parametrize("alpha, n_best", [(-1.0, 1), (0.0, 3), (0.6, 1), (0.6, 3), (3.0, 3)])
def test_early_stopping_does_not_change_n_best_lists(alpha, n_best):
    seeds = np.arange(200) + 1000
    caps = (np.arange(200) * 7) % 12 + 1
    for eos in (0.0, 2.0):
        params = PARAMS | {"eos": np.float32(eos)}
        options = BeamSearch(3, alpha, n_best)
        result = search(seeds, options, caps, params=params)
        assert_equals_reference(result, seeds, options, caps, params=params)


def test_search_stops_once_the_result_is_final():
    params = PARAMS | {"eos": np.float32(8.0)}
    result = search([1, 2], BeamSearch(3, 0.6, 1), [500, 500], lengths=(4, 500), params=params)
    assert result.tokens.shape[2] == 4
    assert result.finished.all()
    # A list of three needs a longer search.
    longer = search([1, 2], BeamSearch(3, 0.6, 3), [500, 500], lengths=(4, 500), params=params)
    assert longer.finished.all()
    np.testing.assert_array_equal(longer.lengths[:, 0], result.lengths[:, 0])


def test_eos_in_every_beam_keeps_the_beam_full():
    params = PARAMS | {"eos": np.float32(5.0)}
    options = BeamSearch(3, 5.0, 3)  # a length reward so large that the search continues to the cap
    result = search([7], options, [6], params=params)
    assert result.finished.all() and result.lengths.max() == 6
    assert_equals_reference(result, [7], options, [6], params=params)


def test_result_is_independent_of_the_batch():
    options = BeamSearch(3, 0.6, 3)
    seeds, caps = np.arange(6) + 50, np.array([9, 3, 12, 1, 7, 5])
    batch = search(seeds, options, caps, lengths=(4, 16))
    order = np.array([3, 0, 5, 1, 4, 2])
    permuted = search(seeds[order], options, caps[order], lengths=(4, 16))
    other_caps = search(seeds, options, np.where(np.arange(6) == 1, 3, 16), lengths=(4, 16))
    for i, b in enumerate(order):
        alone = search(seeds[b : b + 1], options, caps[b : b + 1], lengths=(16,))
        for other, row in [(permuted, i), (alone, 0)] + [(other_caps, 1)] * int(b == 1):
            assert hypotheses(other, row) == hypotheses(batch, b)
            np.testing.assert_array_equal(other.finished[row], batch.finished[b])
            np.testing.assert_allclose(other.scores[row], batch.scores[b], rtol=1e-6)


def test_n_best_lists_are_sorted_and_unique():
    result = search(np.arange(40), BeamSearch(6, 0.6, 6), [10] * 40, lengths=(10,))
    for b in range(40):
        finished = result.finished[b]
        assert len(set(hypotheses(result, b))) == 6
        assert (np.diff(result.scores[b][finished]) <= 0).all() and (
            np.diff(result.scores[b][~finished]) <= 0
        ).all()
        assert (np.diff(finished.astype(int)) <= 0).all()
        for tokens, is_finished, log_prob in zip(
            hypotheses(result, b), finished, result.log_probs[b], strict=True
        ):
            assert (tokens[-1] == EOS) == is_finished and EOS not in tokens[:-1] and 0 not in tokens
            np.testing.assert_allclose(log_prob, MODEL.score(b, tokens), rtol=1e-5)
    beyond = np.arange(result.tokens.shape[2]) >= result.lengths[..., None]
    assert (result.tokens[beyond] == 0).all()


def test_forced_prefix_starts_hypotheses_and_is_scored():
    prefixes = [(2, 3), (4,), (), (3, 3, 2), (2, EOS), (2, 3, 4)]
    prefix_BxP = np.array([p + (0,) * (3 - len(p)) for p in prefixes], np.int32)
    seeds, caps = np.arange(6) + 9, [6, 6, 6, 6, 6, 2]
    options = BeamSearch(3, 0.6, 2)
    result = search(seeds, options, caps, prefix=prefix_BxP)
    for b, prefix in enumerate(prefixes):
        one = [seeds[b]], options, [caps[b]]
        row = jax.tree.map(lambda x, b=b: x[b : b + 1], result)
        assert_equals_reference(row, *one, prefix=prefix)
        assert all(
            tokens[: len(prefix)] == prefix[: len(tokens)]
            for tokens in hypotheses(result, b)
            if tokens
        )
        np.testing.assert_allclose(
            result.log_probs[b, 0], MODEL.score(seeds[b], hypotheses(result, b)[0]), rtol=1e-5
        )
    assert hypotheses(result, 4) == [(2, EOS), ()]  # no second hypothesis exists
    assert hypotheses(result, 5) == [(2, 3), ()] and not result.finished[5].any()


def test_caps_are_per_sentence_and_cut_outputs_are_flagged():
    params = PARAMS | {"eos": np.float32(-30.0)}
    caps = np.array([1, 2, 5, 11])
    options = BeamSearch(1, 0.6, 1)
    result = search([1, 2, 3, 4], options, caps, params=params)
    # EOS is never among the two best candidates, so nothing finishes.
    np.testing.assert_array_equal(result.lengths[:, 0], caps)
    assert not result.finished.any() and (result.tokens != EOS).all()
    for b, cap in enumerate(caps):
        log_prob = MODEL.score(b + 1, hypotheses(result, b)[0], params)
        np.testing.assert_allclose(result.scores[b, 0], log_prob / penalty(cap, 0.6), rtol=1e-5)
    # EOS as the last allowed token finishes the hypothesis.
    ends = search([1], BeamSearch(1, 0.6, 1), [1], params=PARAMS | {"eos": np.float32(9.0)})
    assert hypotheses(ends, 0) == [(EOS,)] and ends.finished.all()
    nothing = search([1, 2], BeamSearch(2, 0.6, 1), [0, 3])
    assert nothing.lengths[0, 0] == 0 and nothing.lengths[1, 0] > 0


def test_ties_go_to_lower_beam_and_lower_token_id():
    flat = TableModel(flat=True)
    result = search([0], BeamSearch(2, 0.0, 2), [3], model=flat)
    # Without a penalty shorter hypotheses are always likelier; ties go to the lower id.
    assert hypotheses(result, 0) == [(EOS,), (2, EOS)]
    result = search(
        [0], BeamSearch(1, 0.0, 1), [3], model=flat, params=PARAMS | {"eos": np.float32(-50.0)}
    )
    assert hypotheses(result, 0) == [(2, 2, 2)]


def test_stages_change_only_the_buffer_length():
    options = BeamSearch(4, 0.6, 4)
    caps = np.arange(8) * 2 + 1
    one = search(np.arange(8), options, caps, lengths=(16,))
    staged = search(np.arange(8), options, caps, lengths=(4, 8, 16))
    width = staged.tokens.shape[2]
    assert (one.tokens[:, :, width:] == 0).all()
    one = one.replace(tokens=one.tokens[:, :, :width])
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(staged), strict=True):
        np.testing.assert_array_equal(a, b)
    past_the_list = search(np.arange(8), options, caps, lengths=(2, 3))
    assert [hypotheses(past_the_list, b) for b in range(8)] == [
        hypotheses(one, b) for b in range(8)
    ]


def test_stage_lengths_and_cache_growth():
    assert [next_length(n, (4, 8)) for n in (1, 4, 7, 8, 9, 16)] == [4, 8, 8, 16, 16, 24]
    grown = grow(MODEL.start([1, 2], 3, 4)["self"], 6)
    assert grown["tokens"].shape == (2, 3, 6) and grown["hash"].shape == (2, 3)


def test_equal_shapes_compile_once():
    traces = []

    class CountingModel(TableModel):
        def __call__(self, *args):
            traces.append(1)
            return super().__call__(*args)

    model, options = CountingModel(), BeamSearch(2, 0.6, 1)
    first = run_search(
        model, PARAMS, model.start([1, 2], 2, 4), options, sentences([4, 3]), lengths=(4,)
    )
    count = len(traces)
    again = run_search(
        CountingModel(),
        PARAMS,
        model.start([1, 2], 2, 4),
        BeamSearch(2, 0.6, 1),
        sentences([4, 3]),
        lengths=(4,),
    )
    run_search(
        model,
        PARAMS | {"scale": np.float32(3)},
        model.start([3, 4], 2, 4),
        options,
        sentences([2, 4]),
        lengths=(4,),
    )
    assert count > 0 and len(traces) == count
    np.testing.assert_array_equal(first.tokens, again.tokens)


def test_sharded_batch_gives_the_same_result():
    mesh = devices_mesh(data=4)
    rows = mesh_lib.named(mesh, mesh_lib.ROWS)
    options, seeds, caps = BeamSearch(3, 0.6, 2), np.arange(8), np.arange(8) + 2
    whole = search(seeds, options, caps, lengths=(4, 16))
    with mesh_lib.use(mesh):
        cache = jax.device_put(MODEL.start(seeds, 3, 4), rows)
        inputs = jax.device_put(sentences(caps), rows)
        split = run_search(MODEL, PARAMS, cache, options, inputs, lengths=(4, 16))
    np.testing.assert_array_equal(whole.tokens, split.tokens)
    np.testing.assert_allclose(whole.scores, split.scores, rtol=1e-6)
    assert not split.tokens.sharding.is_fully_replicated
