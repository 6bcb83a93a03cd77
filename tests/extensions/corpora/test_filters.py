"""Filters of training pairs: counted, listed, and part of a store's recipe."""

import re
from dataclasses import replace

import pytest
from helpers.refusals import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.config import Data, default_config, override, resolve
from t2t_flax.data import preprocess
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.preprocess import Policies, prepare_split, recipe_of
from t2t_flax.data.sources import JoinedSource, Source, open_source
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.extensions.corpora import duplicates
from t2t_flax.extensions.corpora.duplicates import Duplicates
from t2t_flax.extensions.corpora.filters import LengthRatio
from t2t_flax.extensions.corpora.list_dropped import list_dropped
from t2t_flax.tasks import task_of

POLICIES = Policies(max_length=100, on_too_long="drop", empty_lines="drop")


def open_pairs(folder, pairs, name="t.tsv"):
    (folder / name).write_text(
        "".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8"
    )
    return open_source(name, root=str(folder), source_language="en", target_language="de")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    pairs = [
        (f"sentence {i} of {i % 7} houses", f"Satz {i} von {i % 7} Häusern") for i in range(120)
    ]
    return train_tokenizers(
        open_pairs(tmp_path_factory.mktemp("training"), pairs),
        Data(vocab_size=300, normalization="identity"),
    )


def texts(store, tokenizers):
    sides = tokenizers.source.decode, tokenizers.target.decode
    return [(sides[0](store.source(i)), sides[1](store.target(i))) for i in range(store.num_pairs)]


FILTERED = [
    ("a house", "ein Haus"),
    ("a dog", "ein Hund"),
    ("a house", "ein Haus"),  # duplicate
    ("a house", "das Haus"),
    ("", "leer"),
    ("a", "ein " * 12),  # of unlike lengths
    ("the dog " * 60, "der Hund " * 60),  # too long
    ("", "leer"),  # both duplicate and empty
]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_dropped_pairs_are_counted_and_listed_by_reason(
    tmp_path, tokenizers, monkeypatch, num_workers
):
    monkeypatch.setattr(preprocess, "CHUNK_PAIRS", 3)
    monkeypatch.setattr(preprocess, "INLINE_PAIRS", 3)
    source = open_pairs(tmp_path, FILTERED)
    policies = replace(
        POLICIES,
        max_length=100,
        on_too_long="drop",
        empty_lines="drop",
        filters=(LengthRatio(4.0), Duplicates()),
    )
    store = prepare_split(
        source, tokenizers, tmp_path / "filtered", policies, num_workers=num_workers
    )
    assert texts(store, tokenizers) == [FILTERED[i] for i in (0, 1, 3)]
    reasons = ["duplicate", "empty", "length_ratio", "too_long", "duplicate"]
    listed = list(list_dropped(source, tokenizers, policies, num_workers=num_workers))
    assert [reason for _, reason in listed] == reasons
    assert [where.rsplit(" ", 1)[1] for where, _ in listed] == ["3", "5", "6", "7", "8"]
    counts = {
        name: store.meta[name]
        for name in ("pairs_read", "dropped", "duplicate", "empty", "too_long", "length_ratio")
    }
    assert counts == dict(pairs_read=8, dropped=5, duplicate=2, empty=1, too_long=1, length_ratio=1)
    assert re.findall(r"\d+", store.describe().partition("(")[2]) == ["8", "5", "1", "1", "1", "2"]


def test_drops_are_counted_by_source(tmp_path, tokenizers):
    parts = [
        open_pairs(tmp_path, FILTERED),
        open_pairs(tmp_path, FILTERED[:2] + [("cats", "Katzen")], "b.tsv"),
    ]
    policies = replace(POLICIES, filters=(LengthRatio(4.0), Duplicates()))
    store = prepare_split(JoinedSource("both", parts), tokenizers, tmp_path / "both", policies)
    numbers = [re.findall(r"\d+", line) for line in store.describe(["a", "b"]).split("\n")[1:]]
    assert numbers == [["3", "8", "5", "1", "1", "1", "2"], ["1", "3", "2", "2"]]
    of_sources = store.meta["counts_of_sources"]
    assert all(
        store.meta[name] == sum(counts[name] for counts in of_sources) for name in of_sources[0]
    )


def test_a_corpus_of_which_nothing_is_left_is_named_with_the_counts(tmp_path):
    (tmp_path / "a.tsv").write_text("Foo\tFoo\n\tleer\n" * 3 + "7\t7\n")
    keys = {"data.train": "a.tsv", "data.root": str(tmp_path), "filters.copies": "True"}
    with refused("a.tsv", "3 with", "4 with"):
        prepare_corpus(task_of(resolve(override(default_config(), keys))), tmp_path / "run")
    keys |= {"data.train": "tsv:a.tsv:1,2:1>=8", "filters.copies": "False"}
    (tmp_path / "a.tsv").write_text("7\tx\n")
    with refused("a.tsv", "1 with", "score"):
        prepare_corpus(task_of(resolve(override(default_config(), keys))), tmp_path / "run")


class Letters(Source):
    """Rows of one-letter texts, some of which the source itself drops."""

    reasons = {"score": "with a low score"}

    def __init__(self, rows):
        super().__init__("letters")
        self._rows = rows

    def read(self):
        return iter(self._rows)

    def fingerprint(self):
        return str(self._rows)


LETTER = st.sampled_from("ab")
ROWS = st.lists(st.tuples(LETTER, LETTER) | st.just("score"), min_size=1, max_size=12)


@given(
    parts=st.lists(ROWS, min_size=1, max_size=3),
    block=st.integers(1, 5),
    in_memory=st.sampled_from([1, 10**6]),
)
@settings(max_examples=200, deadline=None)
def test_duplicates_are_those_of_a_plain_search(parts, block, in_memory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_BLOCK", block)
        patch.setattr(duplicates, "_IN_MEMORY", in_memory)
        marks = Duplicates().marks([Letters(rows) for rows in parts])
    rows, before = [row for part in parts for row in part], set()
    expected = [
        not isinstance(row, str) and (row in before or before.add(row) is not None) for row in rows
    ]
    assert [mark for of_part in marks for mark in of_part] == expected and [*map(len, marks)] == [
        *map(len, parts)
    ]


def test_filters_are_part_of_the_recipe(tokenizers):
    filters = ((), (LengthRatio(2.0),), (LengthRatio(3.0),), (Duplicates(),))
    source = open_source("toy:test:1", source_language="en", target_language="de")
    digests = {
        recipe_of(source, tokenizers, replace(POLICIES, filters=each))[1] for each in filters
    }
    assert len(digests) == 4


def test_duplicates_are_found_across_sources_whatever_their_tags(tmp_path, tokenizers):
    plain = open_pairs(tmp_path, FILTERED[:2])
    tagged = open_pairs(
        tmp_path, [(f"<bt> {source}", target) for source, target in FILTERED[:2]], "tagged.tsv"
    )
    tagged.tag = "<bt>"
    source = JoinedSource("both", [plain, tagged])
    with refused("2 duplicates"):
        prepare_split(
            source, tokenizers, tmp_path / "s", replace(POLICIES, filters=(Duplicates(),))
        )


def test_a_pair_in_two_directions_is_no_duplicate(tmp_path):
    (tmp_path / "a.tsv").write_text("OK\tOK\nYes\tJa\nYes\tJa\n")
    keys = {
        "data.train": "en-de=a.tsv; fr-en=a.tsv",
        "languages.directions": "by_name",
        "data.root": str(tmp_path),
    }
    keys |= {
        "data.vocab_size": "280",
        "filters.duplicates": "True",
        "data.max_length": "16",
        "data.pack_length": "16",
        "data.batch_tokens": "64",
    }
    store = prepare_corpus(
        task_of(resolve(override(default_config(), keys))), tmp_path / "run"
    ).train
    assert store.pairs_of_sources == [2, 2] and store.meta["duplicate"] == 2
