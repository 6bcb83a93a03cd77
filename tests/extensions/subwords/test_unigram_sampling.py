"""Unigram sampling: segmentations x of a text have probability P(x)^alpha / sum."""

import itertools
import math
import random
from collections import Counter

import pytest
from helpers.refusals import refused
from helpers.whole_pieces import with_whole_piece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

from t2t_flax.config import Data, default_config, override, resolve
from t2t_flax.config.data_keys import UNK
from t2t_flax.data.sources import open_source
from t2t_flax.data.tokenizers import SentencePieceTokenizer, train_tokenizers
from t2t_flax.extensions.subwords.drawn_pairs import sampler
from t2t_flax.extensions.subwords.samplers import UnigramSampling

KEYS = {
    "data.tokenizer": "unigram",
    "data.vocab_size": "150",
    "data.byte_fallback": "False",
    "data.batch_tokens": "300",
    "data.max_length": "60",
    "data.pack_length": "60",
    "subwords.unigram_alpha": "0.2",
}


@pytest.fixture(scope="module")
def source():
    return open_source("toy:train:300", source_language="en", target_language="de")


MODELS = {
    "bytes": dict(vocab_size=450, byte_fallback=True),
    "unknowns": dict(vocab_size=200, byte_fallback=False),
    "spaces": dict(vocab_size=200, byte_fallback=False, normalization="identity"),
}


@pytest.fixture(scope="module")
def models(source) -> dict[str, SentencePieceTokenizer]:
    of = {name: Data(tokenizer="unigram", **keys) for name, keys in MODELS.items()}
    trained = {
        name: with_whole_piece(train_tokenizers(source, data).source, "<bt>")
        for name, data in of.items()
    }
    return trained | {"crossing": crossing()}


def crossing() -> SentencePieceTokenizer:
    """A model with pieces over several words, unused pieces and other special ids.

    All written by hand.
    """
    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    (
        model.trainer_spec.unk_id,
        model.trainer_spec.bos_id,
        model.trainer_spec.eos_id,
        model.trainer_spec.pad_id,
    ) = (
        3,
        1,
        2,
        0,
    )
    kinds = model.SentencePiece
    for piece in ("<pad>", "<s>", "</s>"):
        model.pieces.add(piece=piece, type=kinds.CONTROL)
    model.pieces.add(piece="<unk>", type=kinds.UNKNOWN)
    model.pieces.add(piece="<bt>", type=kinds.USER_DEFINED)
    model.pieces.add(piece="th", score=-1.0, type=kinds.UNUSED)
    pieces = ["▁", *"thesmal", "▁the", "he", "▁the▁small", "e▁s", "small", "sm", "all"]
    for i, piece in enumerate(pieces):
        model.pieces.add(piece=piece, score=-2.0 - 0.37 * i)
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = True
    model.normalizer_spec.escape_whitespaces = True
    return SentencePieceTokenizer(model.SerializeToString())


def scores_of(tokenizer: SentencePieceTokenizer) -> dict[str, float]:
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.data)
    return {p.piece: p.score for p in proto.pieces if p.type == p.NORMAL}


def all_segmentations(
    tokenizer: SentencePieceTokenizer, normalized: str
) -> dict[tuple[str, ...], float]:
    """Every segmentation of a normalized text without tags -> its log-probability.

    Unknown characters as in SentencePiece.
    """
    scores = scores_of(tokenizer)
    unknown = min(scores.values()) - 10
    found = {}
    for cuts in itertools.product([False, True], repeat=len(normalized) - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(normalized)]
        pieces = tuple(normalized[a:b] for a, b in itertools.pairwise(bounds))
        each = [scores.get(piece, unknown if len(piece) == 1 else None) for piece in pieces]
        if None not in each:
            found[pieces] = sum(each)
    return found


def joined_ids(tokenizer: SentencePieceTokenizer, pieces: tuple[str, ...]) -> tuple[int, ...]:
    """Ids of pieces: bytes or one UNK for a run of unknown characters."""
    scores, ids = scores_of(tokenizer), []
    names = {tokenizer.pieces([i])[0]: i for i in range(tokenizer.vocab_size)}
    for piece in pieces:
        if piece in scores:
            ids.append(names[piece])
        elif "<0x00>" in names:
            ids += [names[f"<0x{byte:02X}>"] for byte in piece.encode()]
        elif ids[-1:] != [UNK]:
            ids.append(UNK)
    return tuple(ids)


@pytest.mark.parametrize(
    ("model", "text", "alpha"),
    [
        ("bytes", "there", 1.0),
        ("bytes", "The rain", 0.2),
        ("bytes", "in😀das", 0.3),
        ("unknowns", "en日ñday", 0.1),
        ("spaces", "the  und", 0.4),
        ("crossing", "the small", 0.3),
        ("crossing", "th xy small", 0.5),
    ],
)
def test_frequencies_are_those_of_the_enumerated_distribution(models, model, text, alpha):
    """Against all segmentations of the whole text; frequencies within five standard deviations."""
    tokenizer = models[model]
    normalized = SentencePieceProcessor(model_proto=tokenizer.data).normalize(text)
    weights: Counter[tuple[int, ...]] = Counter()
    for pieces, score in all_segmentations(tokenizer, normalized).items():
        weights[joined_ids(tokenizer, pieces)] += math.exp(alpha * score)
    total = weights.total()
    draws, generator, sampler = 4000, random.Random(0), UnigramSampling(tokenizer, alpha)
    counts = Counter(tuple(sampler.encode(text, generator)) for _ in range(draws))
    assert set(counts) <= set(weights) and len(weights) > 1
    for ids, weight in weights.items():
        p = weight / total
        assert abs(counts[ids] - draws * p) <= 5 * math.sqrt(draws * p * (1 - p)) + 3, (
            ids,
            p,
            counts[ids] / draws,
        )


@pytest.mark.parametrize("model", ["bytes", "unknowns", "crossing"])
def test_probabilities_of_pieces_are_the_exact_marginals(models, model):
    """The lattice's own probabilities, without drawing: of each last piece of a text."""
    tokenizer = models[model]
    sampler = UnigramSampling(tokenizer, 0.3)
    text = "▁the▁small" if model == "crossing" else "▁thinger"
    lattice = sampler.lattice(text)
    for end in range(1, len(text) + 1):
        found = all_segmentations(tokenizer, text[:end])
        total = math.fsum(math.exp(0.3 * score) for score in found.values())
        ways, below = lattice[end], 0.0
        assert {text[start:end] for start in ways.starts} == {pieces[-1] for pieces in found}
        for start, cumulative in zip(ways.starts, ways.cumulative, strict=True):
            last = [score for pieces, score in found.items() if pieces[-1] == text[start:end]]
            marginal = math.fsum(math.exp(0.3 * score) for score in last) / total
            assert cumulative - below == pytest.approx(marginal, abs=1e-12)
            below = cumulative
        assert ways.cumulative[-1] == 1.0


TEXT = st.one_of(
    st.sampled_from(
        [
            "the small house",
            "<bt> the house",
            "a<bt>b",
            "ﬁve  ½  spaces ",
            "😀 日本",
            "",
            " ",
            "<unk> </s> ▁x",
        ]
    ),
    st.text("thesmalhou ▁<bt>é😀\n", max_size=30),
)


def log_probability(tokenizer, ids) -> float:
    scores = scores_of(tokenizer)
    return sum(scores.get(piece, 0.0) for piece in tokenizer.pieces(ids))


@pytest.mark.parametrize("model", [*MODELS, "crossing"])
@given(text=TEXT)
@example(text="▁▁<bt><bt>▁")
@settings(max_examples=150, deadline=None)
def test_a_large_alpha_gives_the_segmentation_of_sentencepiece(models, model, text):
    """Among equally probable ones, SentencePiece keeps the first by its float32 sums."""
    tokenizer = models[model]
    best, own = (
        tokenizer.encode(text),
        UnigramSampling(tokenizer, 1e9).encode(text, random.Random(0)),
    )
    if own != best:
        assert log_probability(tokenizer, own) == pytest.approx(
            log_probability(tokenizer, best), rel=1e-5
        )
    assert tokenizer.decode(own) == tokenizer.decode(best)


@pytest.mark.parametrize("model", [*MODELS, "crossing"])
@given(text=TEXT, seed=st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_every_draw_spells_the_text_and_keeps_tags_whole(models, model, text, seed):
    tokenizer = models[model]
    ids = UnigramSampling(tokenizer, 0.05).encode(text, random.Random(seed))
    assert ids == UnigramSampling(tokenizer, 0.05).encode(text, random.Random(seed))
    assert tokenizer.pieces(ids).count("<bt>") == tokenizer.pieces(tokenizer.encode(text)).count(
        "<bt>"
    )
    if model == "bytes":
        assert tokenizer.decode(ids) == tokenizer.decode(tokenizer.encode(text))


def test_long_texts_without_spaces(models):
    text = "there" * 1_000
    ids = UnigramSampling(models["bytes"], 0.2).encode(text, random.Random(0))
    assert models["bytes"].decode(ids) == text


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"data.task": "parsing"}, ("subwords.unigram_alpha", "data.task")),
        ({"data.tokenizer": "bpe"}, ("subwords.unigram_alpha", "data.tokenizer")),
        ({"subwords.bpe_dropout": "0.1"}, ("subwords.bpe_dropout", "data.tokenizer")),
        ({"data.tokenizer": "subword_nmt"}, ("data.tokenizer_model",)),
    ],
)
def test_contradictory_keys_are_refused(keys, names):
    with refused(*names):
        resolve(override(default_config(), {**KEYS, **keys}))


def test_other_models_are_refused(source):
    models = {
        kind: train_tokenizers(
            source, Data(tokenizer=kind, vocab_size=100, byte_fallback=False)
        ).source
        for kind in ("bpe", "unigram")
    }
    for key, kind in (("unigram_alpha", "bpe"), ("bpe_dropout", "unigram")):
        with refused(f"subwords.{key}", kind):
            sampler(key, models[kind], 0.1)
