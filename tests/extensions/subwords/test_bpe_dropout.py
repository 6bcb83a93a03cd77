"""BPE-dropout skips each merge with its probability; passes see different segmentations."""

import math
from collections import Counter
from random import Random

import pytest
from helpers.configs import small_config
from helpers.whole_pieces import with_whole_piece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from t2t_flax.config import Data
from t2t_flax.data.dataset import batches_of, prepare_corpus
from t2t_flax.data.sources import open_source
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.extensions.subwords import samplers
from t2t_flax.extensions.subwords.samplers import BpeDropout
from t2t_flax.tasks import task_of
from t2t_flax.training.model_summary import describe

DATA = dict(
    train="toy:train:120",
    valid="toy:valid:20",
    vocab_size=350,
    batch_tokens=300,
    max_length=60,
    pack_length=60,
)


@pytest.fixture(scope="module")
def models():
    source = open_source("toy:train:300", source_language="en", target_language="de")
    of = {
        fallback: train_tokenizers(
            source, Data(vocab_size=500 if fallback else 200, byte_fallback=fallback)
        ).source
        for fallback in (True, False)
    }
    return {fallback: with_whole_piece(model, "<bt>") for fallback, model in of.items()}


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
    "thesmallhousethesmallhousethesmallhouse",
]
TEXT = st.one_of(st.sampled_from(WORDS), st.text("thesmalhou ▁<bt>é😀", max_size=30))


@pytest.mark.parametrize("byte_fallback", [True, False])
@given(text=TEXT)
@settings(max_examples=200, deadline=None)
def test_without_dropout_the_ids_are_those_of_sentencepiece(models, byte_fallback, text):
    tokenizer = models[byte_fallback]
    assert BpeDropout(tokenizer, 0.0).encode(text, Random(0)) == tokenizer.encode(text)
    sampled = BpeDropout(tokenizer, 0.5).encode(text, Random(0))
    assert sampled == BpeDropout(tokenizer, 0.5).encode(text, Random(0))
    if byte_fallback:
        assert tokenizer.decode(sampled) == tokenizer.decode(tokenizer.encode(text))


def outcomes(
    scores: dict[str, float], pieces: tuple[str, ...], dropout: float
) -> Counter[tuple[str, ...]]:
    """The probability of each segmentation by the definition.

    In each round every possible merge is skipped or not, and the best of those that are left is
    made, until none is.
    """
    merges = [
        (-scores[a + b], i)
        for i, (a, b) in enumerate(zip(pieces, pieces[1:], strict=False))
        if a + b in scores
    ]
    found: Counter[tuple[str, ...]] = Counter({pieces: dropout ** len(merges)})
    for rank, (_, i) in enumerate(sorted(merges)):
        merged = (*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :])
        for ends, probability in outcomes(scores, merged, dropout).items():
            found[ends] += dropout**rank * (1 - dropout) * probability
    return found


@pytest.mark.parametrize(
    ("dropout", "cached"), [(0.1, True), (0.5, True), (0.5, False), (0.9, False)]
)
def test_frequencies_are_those_of_the_definition(models, monkeypatch, dropout, cached):
    """Within five standard deviations; both for words whose states are kept and for long texts."""
    monkeypatch.setattr(samplers, "_KEPT_LENGTH", 20 if cached else 0)
    tokenizer = models[True]
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.data)
    scores = {p.piece: p.score for p in proto.pieces if p.type == p.NORMAL}
    expected = outcomes(scores, tuple("▁There"), dropout)
    assert sum(expected.values()) == pytest.approx(1.0) and len(expected) > 3
    sampler, random, draws = BpeDropout(tokenizer, dropout), Random(0), 4000
    counts: Counter[tuple[str, ...]] = Counter()
    for _ in range(draws):  # the merges of the word before and of this one are drawn together
        pieces = tokenizer.pieces(sampler.encode("and There", random))
        counts[tuple(pieces[[i for i, piece in enumerate(pieces) if piece[0] == "▁"][1] :])] += 1
    assert set(counts) <= set(expected)
    for pieces, p in expected.items():
        assert abs(counts[pieces] - draws * p) <= 5 * math.sqrt(draws * p * (1 - p)) + 3, pieces


def test_draws_do_not_depend_on_what_is_kept(models, monkeypatch):
    texts = [f"there is something {i} in the weather" for i in range(30)]
    drawn = [BpeDropout(models[True], 0.3).encode(text, Random(i)) for i, text in enumerate(texts)]
    for kept, length in ((10_000, 20), (3, 20), (40, 20), (10_000, 0), (10_000, 4)):
        monkeypatch.setattr(samplers, "_KEPT", kept)
        monkeypatch.setattr(samplers, "_KEPT_LENGTH", length)
        sampler = BpeDropout(models[True], 0.3)
        again = {i: sampler.encode(texts[i], Random(i)) for i in [*reversed(range(30)), *range(30)]}
        assert [again[i] for i in range(30)] == drawn


def test_every_merge_dropped_leaves_characters(models):
    tokenizer = models[True]
    pieces = tokenizer.pieces(BpeDropout(tokenizer, 0.999999).encode("<bt> the house", Random(0)))
    assert pieces == ["▁", "<bt>", *"▁the▁house"]


def corpus_of(folder, **groups):
    config = small_config(**{"data": DATA, "subwords": dict(bpe_dropout=0.3)} | groups)
    return config, prepare_corpus(task_of(config), folder)


def sentences(batch, side):
    sentences = batch.sides[side]
    return [
        (pair, sentences.ids[sentences.offsets[at] :][: sentences.lengths[at]].tolist())
        for at, pair in enumerate(batch.pairs.tolist())
    ]


def test_each_pass_reads_every_pair_once_in_other_segmentations_of_the_same_text(tmp_path):
    config, corpus = corpus_of(tmp_path)
    batches = batches_of(config, corpus)
    count = corpus.train.num_pairs
    seen: dict[int, dict[int, list[int]]] = {}
    visits = [0] * count
    for k in range(200):
        batch = batches.batch(k)
        assert batch.shape in batches.shapes
        for pair, ids in sentences(batch, 0):
            seen.setdefault(visits[pair], {})[pair] = ids
            visits[pair] += 1
    epochs = range(min(visits))
    assert len(epochs) >= 4
    own = [corpus.train.source(i).tolist() for i in range(corpus.train.num_pairs)]
    for epoch in epochs:
        assert sorted(seen[epoch]) == list(range(count))
        assert sum(seen[epoch][i] != ids for i, ids in enumerate(own)) > 60
        for i, ids in seen[epoch].items():
            assert corpus.tokenizers.source.decode(ids[:-1]) == corpus.tokenizers.source.decode(
                own[i][:-1]
            )
    assert len({str(sorted(seen[epoch].items())) for epoch in epochs}) == len(epochs)


def test_validation_text_has_one_segmentation(tmp_path):
    config, corpus = corpus_of(tmp_path)
    text = task_of(config).open_source("toy:valid:20", key="")
    store = corpus.valid["valid"]
    assert [store.source(i).tolist() for i in range(20)] == [
        [*corpus.tokenizers.source.encode(source), 1] for source, _ in text.pairs()
    ]
    assert "BPE-dropout 0.3: each pass draws another segmentation of every pair" in describe(config)


def test_the_filters_see_the_own_segmentation(tmp_path):
    """So that the same pairs are kept as without dropout, and preparing them takes no draws."""
    _, drawn = corpus_of(tmp_path / "a", data=DATA | dict(max_length=14, pack_length=16))
    _, plain = corpus_of(
        tmp_path / "b", data=DATA | dict(max_length=14, pack_length=16), subwords={}
    )
    assert 0 < plain.train.meta["dropped"] == drawn.train.meta["dropped"]
    for i in range(plain.train.num_pairs):
        assert plain.train.source(i).tolist() == drawn.train.source(i).tolist()
