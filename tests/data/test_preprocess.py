import dataclasses
import itertools
import os
import re
from dataclasses import replace

import pytest
from helpers.corpora import open_pairs
from helpers.refusals import refused

from t2t_flax.config import Data
from t2t_flax.config.data_keys import EOS
from t2t_flax.data import preprocess, workers
from t2t_flax.data.preprocess import PairFilter, Policies, prepare_split
from t2t_flax.data.token_store import VERIFIED
from t2t_flax.data.tokenizers import TokenizerPair, train_tokenizers

TRAINING = dict(tokenizer="bpe", byte_fallback=True, normalization="identity")
POLICIES = Policies(max_length=100, on_too_long="drop", empty_lines="drop")
PAIRS = [(f"sentence {i} of {i % 7} houses", f"Satz {i} von {i % 7} Häusern") for i in range(120)]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    source = open_pairs(tmp_path_factory.mktemp("training"), PAIRS)
    return train_tokenizers(source, Data(vocab_size=300, joint_vocabulary=True, **TRAINING))


def texts(store, tokenizers):
    pairs = []
    for i in range(store.num_pairs):
        assert store.source(i)[-1] == EOS and store.target(i)[-1] == EOS
        pairs.append(
            (tokenizers.source.decode(store.source(i)), tokenizers.target.decode(store.target(i)))
        )
    return pairs


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != VERIFIED}


def test_joint_and_separate_tokenizers(tmp_path):
    source = open_pairs(tmp_path, PAIRS)
    joint = train_tokenizers(source, Data(vocab_size=300, joint_vocabulary=True, **TRAINING))
    separate = train_tokenizers(source, Data(vocab_size=290, joint_vocabulary=False, **TRAINING))
    assert joint.joint and not separate.joint
    assert separate.source.vocab_size == separate.target.vocab_size == 290
    whole_words = [pair.target.pieces(pair.target.encode("Häusern")) for pair in (joint, separate)]
    assert not any("<0x" in piece for piece in sum(whole_words, [])), (
        "the target side was seen by both"
    )
    assert any(
        piece.startswith("<0x")
        for piece in separate.source.pieces(separate.source.encode("Häusern"))
    )
    with refused("source side", "t.en,t.de:", "config.data.vocab_size", "9000"):
        train_tokenizers(source, Data(vocab_size=9000, joint_vocabulary=False, **TRAINING))


def test_store_has_every_pair_in_order(tmp_path, tokenizers, monkeypatch):
    monkeypatch.setattr(preprocess, "CHUNK_PAIRS", 50)
    progress_calls = []
    source = open_pairs(tmp_path, PAIRS)
    assert [*source.pairs()] == PAIRS, "counted, as by the sample of a tokenizer"
    store = prepare_split(
        source,
        tokenizers,
        tmp_path / "s",
        POLICIES,
        report=lambda *args: progress_calls.append(args),
    )
    assert texts(store, tokenizers) == PAIRS
    assert store.source(3).tolist() == [*tokenizers.source.encode(PAIRS[3][0]), EOS]
    assert store.meta["pairs_read"] == store.meta["pairs"] == 120
    assert (
        store.meta["dropped"]
        == store.meta["truncated"]
        == store.meta["empty"]
        == store.meta["too_long"]
        == 0
    )
    assert store.meta["source"]["tokens"] == store.lengths[0].sum()
    assert store.meta["target"]["longest"] == store.lengths[1].max()
    assert store.meta["recipe"]["tokenizer_digest"] == tokenizers.digest
    assert store.meta["recipe"]["source_fingerprint"] == source.fingerprint()
    done = [(0, 120), (50, 120), (100, 120), (120, 120)]
    assert progress_calls == [("tokenise pairs", *one, "pairs") for one in done]


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_store_may_keep_the_texts_of_its_pairs(tmp_path, tokenizers, monkeypatch, num_workers):
    """In the order of the ids, without dropped pairs, and checked like them."""
    monkeypatch.setattr(preprocess, "CHUNK_PAIRS", 20)
    monkeypatch.setattr(preprocess, "INLINE_PAIRS", 20)
    pairs = [*PAIRS, ("", "leer"), ("😀  two ", "<2de> zwei")]
    source = open_pairs(tmp_path, pairs)
    plain = prepare_split(source, tokenizers, tmp_path / "plain", POLICIES)
    keeping = dataclasses.replace(POLICIES, keep_texts=True)
    store = prepare_split(source, tokenizers, tmp_path / "s", keeping, num_workers=num_workers)
    assert [store.texts(i) for i in range(store.num_pairs)] == [pair for pair in pairs if all(pair)]
    assert store.digest != plain.digest and store.longest == plain.longest
    assert {name: content(store.folder)[name] for name in ("source.ids", "target.lengths")} == {
        name: content(plain.folder)[name] for name in ("source.ids", "target.lengths")
    }
    file = store.folder / "target_text.ids"
    file.write_bytes(b"x" + file.read_bytes()[1:])
    with refused("target_text.ids"):
        prepare_split(source, tokenizers, tmp_path / "s", keeping)


def long_pairs(tokenizers, limit):
    """Pairs whose longer side, either one, has limit - 1, limit and limit + 1 tokens with EOS."""

    def text(tokens):
        return next(
            "z" * n for n in range(100) if len(tokenizers.source.encode("z" * n)) + 1 == tokens
        )

    return [
        (text(limit - 1), "b"),
        (text(limit), "b"),
        (text(limit + 1), "b"),
        ("b", text(limit + 1)),
    ]


@pytest.mark.parametrize("policy", ["drop", "truncate", "keep"])
def test_too_long_pairs(tmp_path, tokenizers, policy):
    pairs = long_pairs(tokenizers, 8)
    source = open_pairs(tmp_path, pairs)
    store = prepare_split(source, tokenizers, tmp_path / "s", Policies(8, policy, "drop"))
    dropped, cut = {"drop": (2, 0), "truncate": (0, 2), "keep": (0, 0)}[policy]
    meta = store.meta
    assert (meta["pairs_read"], meta["dropped"], meta["truncated"], meta["too_long"]) == (
        4,
        dropped,
        cut,
        dropped,
    )
    numbers = [4 - dropped, int(store.lengths[0].sum()), int(store.lengths[1].sum())]
    numbers += {"drop": [4, 2, 2], "truncate": [4, 2], "keep": []}[policy]
    assert [int(number) for number in re.findall(r"\d+", store.describe())] == numbers
    expected = [[tokenizers.source.encode(side) for side in pair] for pair in pairs]
    if policy == "drop":
        expected = expected[:2]
    if policy == "truncate":
        expected = [[ids[:7] for ids in pair] for pair in expected]
    assert store.num_pairs == len(expected)
    for i, (src, tgt) in enumerate(expected):
        assert store.source(i).tolist() == [*src, EOS] and store.target(i).tolist() == [*tgt, EOS]


EMPTY = [("a", "b"), ("", "b"), ("c", " \u3000 "), ("", ""), ("d", "e")]


def test_empty_lines(tmp_path, tokenizers):
    source = open_pairs(tmp_path, EMPTY)
    dropped = prepare_split(source, tokenizers, tmp_path / "d", POLICIES)
    assert texts(dropped, tokenizers) == [("a", "b"), ("d", "e")]
    assert (dropped.meta["dropped"], dropped.meta["empty"]) == (3, 3)
    store_with_empty = prepare_split(
        source, tokenizers, tmp_path / "k", replace(POLICIES, empty_lines="keep")
    )
    assert texts(store_with_empty, tokenizers) == EMPTY
    assert (store_with_empty.meta["dropped"], store_with_empty.meta["empty"]) == (0, 0)
    assert store_with_empty.source(1).tolist() == [EOS]


def test_corpus_without_remaining_pairs_is_an_error(tmp_path, tokenizers):
    source = open_pairs(tmp_path, [*PAIRS, ("", "")])
    with refused("121:", "1 with", "120 with"):
        prepare_split(source, tokenizers, tmp_path / "s", replace(POLICIES, max_length=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.de", "t.en"]


def test_error_in_the_last_line_leaves_no_store(tmp_path, tokenizers, monkeypatch):
    monkeypatch.setattr(preprocess, "CHUNK_PAIRS", 10)
    source = open_pairs(tmp_path, PAIRS)
    for language in ("en", "de"):
        with open(tmp_path / f"t.{language}", "ab") as file:
            file.write(b"\xff\n")
    with refused("line 121"):
        prepare_split(source, tokenizers, tmp_path / "s", POLICIES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.de", "t.en"]


def test_reuse_and_rebuild(tmp_path, tokenizers):
    folder = tmp_path / "s"

    def was_rewritten(pairs=PAIRS, pair=tokenizers, **changes):
        """Whether a new store was written."""
        before = (
            {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.iterdir()}
            if folder.exists()
            else {}
        )
        store = prepare_split(
            open_pairs(tmp_path, pairs), pair, folder, replace(POLICIES, **changes)
        )
        assert texts(store, pair) == pairs
        return before != {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.iterdir()}

    assert was_rewritten() and not was_rewritten() and not was_rewritten()
    assert was_rewritten(PAIRS[:-1]) and not was_rewritten(PAIRS[:-1])
    assert (
        was_rewritten()
        and was_rewritten(max_length=99)
        and was_rewritten(on_too_long="truncate")
        and was_rewritten(empty_lines="keep")
    )
    assert was_rewritten() and not was_rewritten()
    other = train_tokenizers(
        open_pairs(tmp_path, PAIRS), Data(vocab_size=290, joint_vocabulary=True, **TRAINING)
    )
    assert was_rewritten(pair=other) and not was_rewritten(pair=other)
    assert was_rewritten(pair=TokenizerPair(other.source, tokenizers.target))


def test_bytes_do_not_depend_on_the_number_of_processes(tmp_path, tokenizers, monkeypatch):
    source = open_pairs(tmp_path, PAIRS + EMPTY)
    prepare_split(source, tokenizers, tmp_path / "one", POLICIES)
    monkeypatch.setattr(preprocess, "CHUNK_PAIRS", 7)
    monkeypatch.setattr(preprocess, "INLINE_PAIRS", 14)
    in_process = []
    real = preprocess.Encoder.__call__
    monkeypatch.setattr(
        preprocess.Encoder,
        "__call__",
        lambda self, pairs: in_process.append(pairs) or real(self, pairs),
    )
    read, ahead = itertools.count(), []
    monkeypatch.setattr(
        source, "read", lambda lines=source.read: (pair for pair in lines() if next(read) >= 0)
    )
    prepare_split(
        source,
        tokenizers,
        tmp_path / "two",
        POLICIES,
        num_workers=2,
        report=lambda stage, done, total, unit: ahead.append(int(repr(read)[6:-1]) - done),
    )
    assert 7 < max(ahead) <= 2 * 3 * 7, "only a few chunks are in memory"
    assert len(in_process) == 2, "all but the first chunks were tokenized by other processes"
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_small_corpus_starts_no_worker(tmp_path, tokenizers, monkeypatch):
    monkeypatch.setattr(preprocess, "Workers", None)
    store = prepare_split(
        open_pairs(tmp_path, PAIRS), tokenizers, tmp_path / "s", POLICIES, num_workers=8
    )
    assert store.num_pairs == len(PAIRS)


def test_dead_workers_are_reported(tmp_path, tokenizers, monkeypatch):
    monkeypatch.setattr(preprocess, "INLINE_PAIRS", 0)
    monkeypatch.setattr(workers, "_start", os.kill)  # called with other arguments: no worker starts
    with refused("config.data.num_workers"):
        prepare_split(
            open_pairs(tmp_path, PAIRS), tokenizers, tmp_path / "s", POLICIES, num_workers=2
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.de", "t.en"]


class OddNumbers(PairFilter):
    """Drops pairs in which a text ends with an odd number."""

    reason, shown = "odd", "with odd numbers"

    def drops(self, pairs):
        return [pair.source.rstrip(".")[-1] in "13579" for pair in pairs]


class Fives(PairFilter):
    """Drops pairs with a 5, before they are tokenized."""

    reason, shown = "five", "with fives"

    def rows(self, parts, rows, report):
        return [(self.reason if "5" in row[0] else row for row in of_part) for of_part in rows]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_filters_drop_pairs_which_are_counted_and_listed(
    tmp_path, tokenizers, monkeypatch, num_workers
):
    monkeypatch.setattr(preprocess, "CHUNK_PAIRS", 3)
    monkeypatch.setattr(preprocess, "INLINE_PAIRS", 3)
    source = open_pairs(tmp_path, [(f"house {i}", f"Haus {i}") for i in range(7)] + [("", "leer")])
    policies = replace(POLICIES, filters=(OddNumbers(), Fives()))
    store = prepare_split(
        source, tokenizers, tmp_path / "filtered", policies, num_workers=num_workers
    )
    assert texts(store, tokenizers) == [(f"house {i}", f"Haus {i}") for i in (0, 2, 4, 6)]
    chunks = preprocess.encode_all(preprocess.Encoder(tokenizers, policies), source, num_workers)
    assert [(3 * n + i, reason) for n, chunk in enumerate(chunks) for i, reason in chunk.dropped] == [
        (1, "odd"), (3, "odd"), (5, "five"), (7, "empty")
    ]  # fmt: skip
    assert "(of 8: 4 dropped, 1 empty, 2 with odd numbers, 1 with fives)" in store.describe()
    alone = open_pairs(tmp_path, [("house 1", "Haus 1")], "odd")
    with refused("1 with", "odd"):
        prepare_split(alone, tokenizers, tmp_path / "none", policies)
