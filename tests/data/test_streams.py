"""Every pair of a corpus is seen equally often, in orders that are a function of the position alone."""

import itertools
from collections import Counter

import hypothesis
import numpy as np
import pytest
from helpers.update_checks import Lengths
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.config import Data
from t2t_flax.data.batching import streams
from t2t_flax.data.batching.streams import PairStream, join, whole_passes


@given(count=st.integers(1, 40), steps=st.lists(st.integers(0, 90), max_size=12), seed=st.integers(0, 9))
def test_pairs_of_a_stream_are_visited_equally_often(count, steps, seed):
    """After any number of positions, taken in any portions, the visits of two pairs differ by at most one."""
    stream, visited = PairStream(5, count, seed), Counter(dict.fromkeys(range(5, 5 + count), 0))
    for begin, end in itertools.pairwise(itertools.accumulate(steps, initial=0)):
        visits = join(stream.visits(begin, end))
        assert len(visits.pairs) == end - begin
        for pair, number in zip(*map(np.ndarray.tolist, visits), strict=True):
            assert number == visited[pair], "passes count the visits before"
            visited[pair] += 1
        assert visited.total() == end and len(visited) == count
        assert max(visited.values()) - min(visited.values()) <= 1


def test_each_pass_and_seed_has_another_order():
    def order(seed, number):
        stream = PairStream(0, 50, seed)
        return [int(stream.visits(at, at + 1)[0].pairs[0]) for at in range(50 * number, 50 * number + 50)]

    orders = [order(0, 0), order(0, 1), order(1, 0)]
    assert all(sorted(one) == list(range(50)) for one in orders)
    assert len(set(map(tuple, orders))) == 3 and orders[0] == order(0, 0)


@hypothesis.settings(max_examples=25)
@given(pairs=st.integers(1, 900), tokens=st.sampled_from([20, 100, 700]), passes=st.integers(1, 3))
def test_each_pass_of_a_corpus_is_a_whole_number_of_windows(pairs, tokens, passes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "WINDOW_PAIRS", 100)
        store = Lengths(*np.full((2, pairs), 5))
        windows = whole_passes(store, Data(batch_tokens=tokens), 3)
        count, wanted = int(windows.a_pass), max(100, streams.WINDOW_UPDATES * tokens // 5)
        assert count == 1 or 0.6 * wanted < pairs / count < 1.7 * wanted
        for number in range(passes):
            visits = join([windows.visits(number * count + i) for i in range(count)])
            np.testing.assert_array_equal(visits.pairs, np.arange(pairs))
            assert set(visits.passes.tolist()) == {number}
            assert {windows.epoch(number * count + i) for i in range(count)} == {number}
