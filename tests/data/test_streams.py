"""Every pair of a corpus is seen once in each pass, in orders that are a function of the position alone."""

import hypothesis
import numpy as np
import pytest
from helpers.update_checks import Lengths
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.config import Data
from t2t_flax.data.batching import streams
from t2t_flax.data.batching.streams import pairs_of_pass, whole_passes


def test_each_pass_and_seed_has_another_order():
    orders = [pairs_of_pass(50, seed, number, 0, 50).tolist() for seed, number in ((0, 0), (0, 1), (1, 0))]
    assert all(sorted(one) == list(range(50)) for one in orders)
    assert len(set(map(tuple, orders))) == 3
    assert [int(pairs_of_pass(50, 0, 0, at, at + 1)[0]) for at in range(50)] == orders[0]


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
            visits = [windows.visits(number * count + i) for i in range(count)]
            np.testing.assert_array_equal(np.sort(np.concatenate([each.pairs for each in visits])), np.arange(pairs))
            assert all((np.diff(each.pairs) > 0).all() for each in visits), "the store is read in its order"
            assert {int(each) for of_window in visits for each in of_window.passes} == {number}
            assert {windows.epoch(number * count + i) for i in range(count)} == {number}
