"""A tokenizer is trained on what the policies keep."""

from dataclasses import replace

import pytest
from helpers.configs import small_config
from helpers.corpora import Even, Numbers, joined, of_sources
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.preprocess import PairFilter, Policies
from t2t_flax.data.sources import JoinedSource, draw_pairs, open_source
from t2t_flax.data.tokenizer_text import TokenizerText
from t2t_flax.extensions.shared.tagged_source import TaggedSource
from t2t_flax.tasks import task_of

POLICIES = Policies(max_length=100, on_too_long="drop", empty_lines="drop")


class Unlike(PairFilter):
    reason, shown, needs_tokens = "unlike", "unlike", True

    def drops(self, pairs):
        raise AssertionError("there are no tokens yet")


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 200))
@settings(deadline=None)
def test_without_filters_a_sample_is_the_text_or_drawn_from_it(counts, size):
    source = joined(*counts)
    sample = TokenizerText(source, POLICIES).sample(size)
    if size >= sum(counts):
        assert sample == list(source.pairs())
    else:
        assert len(set(sample)) == len(sample) == size and set(sample) <= set(source.pairs())


def test_sources_have_their_shares_of_a_sample_by_size():
    sizes = of_sources(TokenizerText(joined(30_000, 10_000), POLICIES).sample(4000))
    assert 2850 < sizes["a"] < 3150 and sizes.total() == 4000


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
    text = TokenizerText(source, replace(POLICIES, filters=(Even(), Unlike())))
    kept = [(s, t) for s, t in source.pairs() if not int(t.split()[1]) % 2]
    assert list(text.pairs()) == kept
    sample = text.sample(size)
    assert set(sample) <= set(kept) and (sample == kept if size > 130 else 15 < len(sample) < 35)


LONG = ("щщщ " * 30_000, "Hallo.")


@pytest.mark.parametrize("sides", [LONG, LONG[::-1]])
@pytest.mark.parametrize(
    ("on_too_long", "most"), [("drop", 0), ("truncate", 100 * 16), ("keep", 120_000)]
)
def test_a_line_counts_as_far_as_it_can_be_kept(on_too_long, most, sides, tmp_path):
    near = ("ab " * 500, " " * 2000 + "ab")
    write(tmp_path, "a.tsv", [("It is late.", "Es ist spät."), sides, near])
    source = open_source(str(tmp_path / "a.tsv"), source_language="en", target_language="de")
    pairs = [*TokenizerText(source, replace(POLICIES, on_too_long=on_too_long)).pairs()]
    lengths = [max(map(len, pair)) for pair in pairs if "щ" in pair[0] + pair[1]]
    assert (
        lengths == [most] * (most > 0) and pairs[-1][0] == near[0] and pairs[-1][1].strip() == "ab"
    )


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
        tokenizer = prepare_corpus(
            task_of(small_config(data=data, **groups)), tmp_path / name
        ).tokenizers.source
        return set(tokenizer.pieces(range(tokenizer.vocab_size)))

    plain, filtered = pieces("plain"), pieces("filtered", filters=dict(duplicates=True))
    assert any("ωψχ" in piece for piece in plain) and not any("ж" in piece for piece in plain)
    assert not any("ωψχ" in piece for piece in filtered)
    mixed = pieces("mixed", filters=dict(duplicates=True), mixtures=dict(shares="clean=1, small=9"))
    assert any("ebra" in piece for piece in mixed - filtered)
