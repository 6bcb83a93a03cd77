"""BPE-dropout: epochs see other segmentations of the same text, each a function of (seed, epoch, pair)."""

import dataclasses
import json
import random

import numpy as np
import pytest
from helpers.whole_pieces import with_whole_piece
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.config import Data, default_config, override, resolve
from t2t_flax.data import preprocess
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.preprocess import Policies, prepare_split
from t2t_flax.data.sources import open_source
from t2t_flax.data.tokenizers import TokenizerPair, train_tokenizers
from t2t_flax.errors import UserError
from t2t_flax.extensions.subwords.hook import Segmentation
from t2t_flax.tasks import task_of

POLICIES = Policies(max_length=200, on_too_long="drop", empty_lines="drop")
PAIRS = [(f"the small house {i} stands there", f"das kleine Haus {i} steht dort") for i in range(60)]
KEYS = {
    "data.vocab_size": "350",
    "data.batch_tokens": "300",
    "data.max_length": "60",
    "data.pack_length": "60",
    "subwords.bpe_dropout": "0.3",
    "subwords.samples": "3",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "t.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS))
    return open_source("t.tsv", root=str(folder), source_language="en", target_language="de")


@pytest.fixture(scope="module")
def tokenizers(source) -> TokenizerPair:
    return train_tokenizers(source, Data(vocab_size=350))


def ids(store) -> list[list[int]]:
    return [store.source(i).tolist() for i in range(store.num_pairs)]


def dropout_of(probability: float, number: int = 0, seed: int = 0) -> Segmentation:
    return Segmentation("bpe_dropout", probability, seed, number)


def prepared(source, tokenizers, folder, number=0, *, dropout=0.3, seed=0, workers=1):
    segmentation = dropout_of(dropout, number, seed)
    return prepare_split(source, tokenizers, folder, POLICIES, num_workers=workers, segmentation=segmentation)


def test_segmentations_differ_and_spell_the_same_text(source, tokenizers, tmp_path):
    plain = prepare_split(source, tokenizers, tmp_path / "plain", POLICIES)
    stores = [prepared(source, tokenizers, tmp_path / str(n), n) for n in range(3)]
    assert len({store.digest for store in [plain, *stores]}) == 4
    assert len({str(ids(store)) for store in [plain, *stores]}) == 4
    assert sum(store.source_lengths.sum() for store in stores) > 3 * plain.source_lengths.sum()
    for store in stores:
        for i, (text, translation) in enumerate(PAIRS):
            assert tokenizers.source.decode(store.source(i)[:-1].tolist()) == text
            assert tokenizers.target.decode(store.target(i)[:-1].tolist()) == translation


@pytest.mark.parametrize("workers", [1, 2])
def test_a_segmentation_is_a_function_of_seed_and_number(source, tokenizers, tmp_path, monkeypatch, workers):
    """Also where processes share the work, and whatever was drawn before."""
    monkeypatch.setattr(preprocess, "CHUNK_PAIRS", 20)
    monkeypatch.setattr(preprocess, "INLINE_PAIRS", 20)
    prepared(source, tokenizers, tmp_path / "before", 2)
    first = prepared(source, tokenizers, tmp_path / "a", 1)
    again = prepared(source, tokenizers, tmp_path / "b", 1, workers=workers)
    assert ids(first) == ids(again) and first.digest == again.digest
    assert ids(first) != ids(prepared(source, tokenizers, tmp_path / "c", 1, seed=1))


WORDS = [
    "the small house",
    "das kleine Haus",
    "<bt> the house",
    "a<bt>b",
    "ﬁve  ½  spaces ",
    "😀 日本",
    "",
    " ",
    "<unk> </s> ▁x",
]


@pytest.mark.parametrize("byte_fallback", [True, False])
@given(text=st.one_of(st.sampled_from(WORDS), st.text("thesmalhou ▁<bt>é😀", max_size=30)))
@settings(max_examples=200, deadline=None)
def test_without_dropout_the_ids_are_those_of_sentencepiece(models, byte_fallback, text):
    tokenizer = models[byte_fallback]
    assert dropout_of(0.0).draw(tokenizer, text, random.Random(0)) == tokenizer.encode(text)
    sampled = dropout_of(0.5).draw(tokenizer, text, random.Random(0))
    if byte_fallback:
        assert tokenizer.decode(sampled) == tokenizer.decode(tokenizer.encode(text))


@pytest.fixture(scope="module")
def models(source):
    return {
        fallback: with_whole_piece(
            train_tokenizers(source, Data(vocab_size=350 if fallback else 90, byte_fallback=fallback)).source, "<bt>"
        )
        for fallback in (True, False)
    }


def test_every_merge_dropped_leaves_characters(models):
    tokenizer = models[True]
    pieces = tokenizer.pieces(dropout_of(0.999999).draw(tokenizer, "<bt> the house", random.Random(0)))
    assert pieces == ["▁", "<bt>", *"▁the▁house"]


def test_other_models_are_refused(source):
    unigram = train_tokenizers(source, Data(tokenizer="unigram", vocab_size=35, byte_fallback=False))
    with pytest.raises(
        UserError, match="config.subwords.bpe_dropout needs a SentencePiece model of type bpe: .* unigram"
    ):
        dropout_of(0.1).draw(unigram.source, "the house", random.Random(0))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    config = resolve(override(default_config(), {"data.train": "toy:train:120", "data.valid": "toy:valid:20", **KEYS}))
    return config, prepare_corpus(task_of(config), tmp_path_factory.mktemp("run"))


def test_each_epoch_reads_the_next_segmentation(corpus):
    config, corpus = corpus
    stores = [corpus.train, *corpus.further]
    assert len(stores) == 3
    batches = corpus.batches(config)
    seen: dict[int, list[int]] = {}
    for k in range(200):
        batch = batches.batch(k)
        assert batch.store is stores[batch.epoch % 3] and batch.shape in batches.shapes
        seen.setdefault(batch.epoch, []).extend(batch.pairs.tolist())
    epochs = sorted(seen)[:-1]
    assert len(epochs) >= 6 and epochs == list(range(len(epochs)))
    assert all(sorted(seen[epoch]) == list(range(stores[epoch % 3].num_pairs)) for epoch in epochs)
    assert seen[0] != seen[3], "the order is drawn anew when a segmentation returns"


def test_batches_are_functions_of_their_number(corpus):
    config, corpus = corpus
    first, second = (corpus.batches(config) for _ in range(2))
    arrays = {int(k): first.batch(int(k)).arrays for k in np.random.default_rng(0).permutation(40)}
    for k in range(40):
        for name, array in second.batch(k).arrays.items():
            np.testing.assert_array_equal(array, arrays[k][name])


def test_validation_text_has_one_segmentation(corpus):
    config, corpus = corpus
    plain = [
        corpus.tokenizers.source.encode(text) + [1]
        for text, _ in task_of(config).open_source("toy:valid:20", key="").pairs()
    ]
    assert ids(corpus.valid["valid"]) == plain


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"eval.every_epochs": "1"}, "bpe_dropout = 0.3 changes the length of an epoch"),
        ({"data.task": "parsing"}, "needs data.tokenizer = bpe, not data.task = parsing"),
        ({"data.tokenizer": "unigram"}, "needs data.tokenizer = bpe, not data.tokenizer = unigram"),
        ({"subwords.samples": "1"}, "subwords.samples"),
    ],
)
def test_contradictory_keys_are_refused(keys, message):
    with pytest.raises(UserError, match=message):
        resolve(override(default_config(), {**KEYS, **keys}))


def test_more_dropout_makes_more_pieces(source, tmp_path):
    tokenizers = train_tokenizers(source, Data(vocab_size=350))
    lengths = [
        prepared(source, tokenizers, tmp_path / str(dropout), dropout=dropout).source_lengths.sum()
        for dropout in (0.05, 0.3, 0.9)
    ]
    assert lengths == sorted(set(lengths))


def test_sampled_stores_of_other_chunks_are_not_reused(source, tokenizers, tmp_path, monkeypatch):
    """The draws depend on how the corpus is cut into chunks, so the digest does too."""
    digest = prepared(source, tokenizers, tmp_path / "a").digest
    monkeypatch.setattr(preprocess, "CHUNK_PAIRS", 7)
    assert prepared(source, tokenizers, tmp_path / "a").digest != digest


def test_segmentations_are_part_of_the_recipe():
    tokenizers = dataclasses.make_dataclass("T", ["digest"])("t")
    recipes = [preprocess.recipe_of("f", tokenizers, POLICIES, s) for s in (None, dropout_of(0.1), dropout_of(0.1, 1))]
    assert len({digest for _, digest in recipes}) == 3 and "segmentation" not in recipes[0][0]
    # As the first version wrote it: digests of its stores stay valid.
    assert json.dumps(recipes[2][0]["segmentation"]) == '{"dropout": 0.1, "seed": 0, "number": 1}'


def test_long_sentences_without_spaces_are_not_drawn(source, tokenizers, tmp_path):
    """Drawing takes time with the square of a word; these are dropped as too long anyway."""
    encoder = preprocess.Encoder(tokenizers, dataclasses.replace(POLICIES, max_length=50), dropout_of(0.5))
    chunk = encoder([("xy" * 50_000, "short"), ("the house", "das Haus")], 0)
    assert chunk.dropped == [(0, "too_long")] and chunk.counts["pairs_read"] == 2


def test_control_symbols_come_before_every_segmentation(tmp_path):
    keys = KEYS | {"data.train": "toy:train:120", "languages.directions": "train=en-de", "data.vocab_size": "360"}
    config = resolve(override(default_config(), keys))
    prepared = prepare_corpus(task_of(config), tmp_path)
    symbol = prepared.tokenizers.source.control_symbols["<2de>"]
    for store in (prepared.train, *prepared.further):
        assert all(sentence[0] == symbol and sentence.count(symbol) == 1 for sentence in ids(store))
