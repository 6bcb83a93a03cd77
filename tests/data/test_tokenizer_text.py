"""A tokenizer is trained on what the filters keep, each source in its share."""

from collections import Counter

import pytest
from helpers.configs import small_config
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.preprocess import PairFilter
from t2t_flax.data.sources import JoinedSource, Source, draw_pairs
from t2t_flax.data.tokenizer_text import Shares, TokenizerText
from t2t_flax.extensions.shared.tagged_source import TaggedSource
from t2t_flax.tasks import task_of


class Numbers(Source):
    """Pairs NAME 0 to NAME count - 1."""

    def read(self):
        return ((f"{self.spec} {i}", f"{self.spec} {i}") for i in range(self.count))

    def fingerprint(self):
        return self.spec


class Even(PairFilter):
    reason, shown = "odd", "odd"

    def drops(self, pairs):
        assert all(pair.source == pair.target for pair in pairs), "filters do not see tags"
        return [bool(int(pair.source.split()[1]) % 2) for pair in pairs]


class Unlike(PairFilter):
    reason, shown, needs_tokens = "unlike", "unlike", True

    def drops(self, pairs):
        raise AssertionError("there are no tokens yet")


def joined(*counts: int) -> Source:
    return JoinedSource("all", [Numbers(name, count) for name, count in zip("abcdefgh", counts, strict=False)])


def of_sources(pairs) -> Counter:
    return Counter(source.split()[0] for source, _ in pairs)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 200))
@settings(deadline=None)
def test_without_filters_and_shares_a_sample_is_the_text_or_uniform(counts, size):
    source = joined(*counts)
    sample = TokenizerText(source, ()).sample(size)
    if size >= sum(counts):
        assert sample == list(source.pairs())
    else:
        assert len(set(sample)) == len(sample) and abs(len(sample) - size) <= len(counts)
        sizes = of_sources(sample)
        for name, count in zip("abcdefgh", counts, strict=False):
            assert abs(sizes[name] - size * count / sum(counts)) <= 1.01


def test_positions_are_drawn_evenly_and_always_the_same():
    pairs = list(Numbers("a", 20_000).pairs())
    drawn = draw_pairs(pairs, 1000)
    assert drawn.pairs == draw_pairs(iter(pairs), 1000).pairs and drawn.seen == 20_000
    assert drawn.pairs == sorted(drawn.pairs, key=pairs.index) and len(set(drawn.pairs)) == 1000
    assert 430 < sum(int(source.split()[1]) < 10_000 for source, _ in drawn.pairs) < 570
    assert drawn.pairs != draw_pairs(pairs, 1000, key=1).pairs


@pytest.mark.parametrize("size", [50, 10_000])
def test_dropped_pairs_are_in_no_sample(size):
    source = JoinedSource("all", [TaggedSource(Numbers("a", 100), "<t>"), Numbers("b", 30)])
    text = TokenizerText(source, (Even(), Unlike()))
    kept = [(s, t) for s, t in source.pairs() if not int(t.split()[1]) % 2]
    assert list(text.pairs()) == kept
    sample = text.sample(size)
    assert set(sample) <= set(kept) and (sample == kept if size > 130 else 15 < len(sample) < 35)


@given(st.floats(0.05, 0.95), st.integers(20, 400))
@settings(deadline=None)
def test_sources_have_their_shares(share, size):
    """Pairs of a small source are repeated, each equally often."""
    source = joined(300, 40)
    sample = TokenizerText(source, (), Shares((1 - share, share), 0.0)).sample(size)
    counts = of_sources(sample)
    assert abs(counts["b"] / len(sample) - share) <= 1 / len(sample) + 0.01
    repeats = Counter(pair for pair in sample if pair[0].startswith("b"))
    assert not repeats or counts["b"] < 40 or max(repeats.values()) - min(repeats.values()) <= 1
    assert max(Counter(pair for pair in sample if pair[0].startswith("a")).values(), default=0) <= 1 + (size > 300)


def test_shares_follow_the_sizes_that_filters_leave():
    source = joined(400, 100)
    sample = TokenizerText(source, (Even(),), Shares((1.0, 1.0), 0.5)).sample(10_000)
    assert of_sources(sample) == {"a": round(250 * 2 / 3), "b": round(250 / 3)}


def write(folder, name, pairs):
    (folder / name).write_text("".join(f"{source}\t{target}\n" for source, target in pairs))


def test_pieces_of_dropped_pairs_are_not_in_the_vocabulary(tmp_path):
    """And another filter, or other shares, train another tokenizer in the same cache."""
    clean = [(f"the old house {i}", f"das alte Haus {i}") for i in range(200)]
    write(tmp_path, "a.tsv", clean + [("ωψχ ωψχ", "ωψχ ωψχ")] * 300 + [("жжж", "")] * 300)
    write(tmp_path, "b.tsv", [(f"zebra zoo {i}", f"Zebra Zoo {i}") for i in range(20)])
    data = dict(
        root=str(tmp_path), vocab_size=60, byte_fallback=False, train="clean=a.tsv; small=b.tsv", valid="",
        cache=str(tmp_path / "cache"),
    )  # fmt: skip

    def pieces(name, **groups):
        tokenizer = prepare_corpus(task_of(small_config(data=data, **groups)), tmp_path / name).tokenizers.source
        return set(tokenizer.pieces(range(tokenizer.vocab_size)))

    plain, filtered = pieces("plain"), pieces("filtered", filters=dict(duplicates=True))
    assert any("ωψχ" in piece for piece in plain) and not any("ж" in piece for piece in plain)
    assert not any("ωψχ" in piece for piece in filtered)
    mixed = pieces("mixed", filters=dict(duplicates=True), mixtures=dict(shares="clean=1, small=9"))
    assert any("ebra" in piece for piece in mixed - filtered)
