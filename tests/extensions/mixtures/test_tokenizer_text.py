"""A tokenizer is trained on a text in which each source has its share."""

from collections import Counter
from dataclasses import replace

from helpers.corpora import Even, joined, of_sources
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.data.preprocess import Policies
from t2t_flax.data.tokenizer_text import TokenizerText
from t2t_flax.extensions.mixtures.tokenizer_text import MixedText, Shares

POLICIES = Policies(max_length=100, on_too_long="drop", empty_lines="drop")


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 200))
@settings(deadline=None)
def test_shares_by_size_are_a_sample_of_the_text(counts, size):
    source = joined(*counts)
    sample = MixedText(TokenizerText(source, POLICIES), Shares((1.0,) * len(counts), 1.0)).sample(
        size
    )
    if size >= sum(counts):
        assert sample == list(source.pairs())
    else:
        assert len(set(sample)) == len(sample) and abs(len(sample) - size) <= len(counts)
        sizes = of_sources(sample)
        for name, count in zip("abcdefgh", counts, strict=False):
            assert abs(sizes[name] - size * count / sum(counts)) <= 1.01


@given(st.floats(0.05, 0.95), st.integers(20, 400))
@settings(deadline=None)
def test_sources_have_their_shares(share, size):
    """Pairs of a small source are repeated, each equally often."""
    source = joined(300, 40)
    sample = MixedText(TokenizerText(source, POLICIES), Shares((1 - share, share), 0.0)).sample(
        size
    )
    counts = of_sources(sample)
    assert abs(counts["b"] / len(sample) - share) <= 1 / len(sample) + 0.01
    repeats = Counter(pair for pair in sample if pair[0].startswith("b"))
    assert not repeats or counts["b"] < 40 or max(repeats.values()) - min(repeats.values()) <= 1
    assert max(
        Counter(pair for pair in sample if pair[0].startswith("a")).values(), default=0
    ) <= 1 + (size > 300)


def test_shares_follow_the_sizes_that_filters_leave():
    source = joined(400, 100)
    sample = MixedText(
        TokenizerText(source, replace(POLICIES, filters=(Even(),))), Shares((1.0, 1.0), 0.5)
    ).sample(10_000)
    assert of_sources(sample) == {"a": round(250 * 2 / 3), "b": round(250 / 3)}
