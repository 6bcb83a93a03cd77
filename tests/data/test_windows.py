"""Every pair is in one window of each epoch, in an order that the position alone determines."""

import hypothesis
import numpy as np
import pytest
from helpers.update_checks import Lengths
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.config import Data
from t2t_flax.data.batching import windows as module
from t2t_flax.data.batching.layouts import PairReader
from t2t_flax.data.batching.updates import plain_stream
from t2t_flax.data.batching.windows import pairs_of_epoch


def test_each_epoch_and_seed_has_another_order():
    orders = [
        pairs_of_epoch(50, seed, number, 0, 50).tolist()
        for seed, number in ((0, 0), (0, 1), (1, 0))
    ]
    assert all(sorted(one) == list(range(50)) for one in orders)
    assert len(set(map(tuple, orders))) == 3
    assert [int(pairs_of_epoch(50, 0, 0, at, at + 1)[0]) for at in range(50)] == orders[0]


@hypothesis.settings(max_examples=25)
@given(pairs=st.integers(1, 900), epochs=st.integers(1, 3))
def test_each_epoch_of_a_corpus_is_a_whole_number_of_windows(pairs, epochs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WINDOW_PAIRS", 100)
        reader = PairReader(Lengths(*np.full((2, pairs), 5)))
        windows = plain_stream(reader, Data(), 3).layouter.windows
        count = windows.per_epoch
        assert count == 1 or 60 < pairs / count < 170
        for epoch in range(epochs):
            samples = [windows.samples(epoch * count + i) for i in range(count)]
            np.testing.assert_array_equal(
                np.sort(np.concatenate([each.pairs for each in samples])), np.arange(pairs)
            )
            assert all((np.diff(each.pairs) > 0).all() for each in samples), (
                "the store is read in its order"
            )
            assert {int(each) for of_window in samples for each in of_window.epochs} == {epoch}
            assert {windows.epoch(epoch * count + i) for i in range(count)} == {epoch}
