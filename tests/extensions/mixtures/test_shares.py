"""Every pair of a source is seen equally often, in an order that the position alone determines."""

import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.extensions.mixtures.shares import PairStream, join


@given(
    count=st.integers(1, 40),
    steps=st.lists(st.integers(0, 90), max_size=12),
    seed=st.integers(0, 9),
)
def test_pairs_of_a_stream_are_visited_equally_often(count, steps, seed):
    """After any number of positions, in any portions, visits of two pairs differ by at most one."""
    stream, visited = PairStream(5, count, seed), Counter(dict.fromkeys(range(5, 5 + count), 0))
    for begin, end in itertools.pairwise(itertools.accumulate(steps, initial=0)):
        visits = join(stream.samples(begin, end))
        assert len(visits.pairs) == end - begin
        for pair, number in zip(*map(np.ndarray.tolist, visits), strict=True):
            assert number == visited[pair], "passes count the visits before"
            visited[pair] += 1
        assert visited.total() == end and len(visited) == count
        assert max(visited.values()) - min(visited.values()) <= 1
