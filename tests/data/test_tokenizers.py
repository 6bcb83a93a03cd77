import io
import pickle
import re

import pytest
from helpers.refusals import refused
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from t2t_flax.config import Data
from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers import SentencePieceTokenizer, TokenizerPair, load_tokenizer

WORDS = [
    a + b + c
    for a in ("str", "kl", "b", "m")
    for b in ("ea", "o", "ie")
    for c in ("ts", "nd", "ck", "ling")
]
TEXT = [
    f"the {WORDS[i % 48]} of {WORDS[i * 7 % 48]}ing was {WORDS[i * 5 % 48]}s, {i % 9} times"
    for i in range(300)
]
SETTINGS = dict(
    vocab_size=320, character_coverage=1.0, byte_fallback=True, normalization="identity"
)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request):
    return SentencePieceTokenizer.train(TEXT, Data(tokenizer=request.param, **SETTINGS))


def test_special_ids_and_size(tokenizer):
    assert (PAD, EOS, UNK) == (0, 1, 2)
    assert tokenizer.pieces([PAD, EOS, UNK]) == ["<pad>", "</s>", "<unk>"]
    assert tokenizer.vocab_size == 320
    ids = tokenizer.encode("the cat sees </s> <pad>")
    assert not {PAD, EOS, UNK} & set(ids) and max(ids) < 320


@pytest.mark.parametrize("text", [TEXT[0], "", "  two  spaces ", "Straße 😀\t½ ＡＢＣ", "a\u2028b"])
def test_byte_fallback_round_trips_any_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([PAD, *ids, EOS, PAD]) == text


def test_half_of_a_surrogate_pair_is_no_text(tokenizer):
    with refused("\\ud83d", "'half \\ud83d'"):
        tokenizer.encode("half \ud83d")


def test_pieces_concatenate_to_the_text(tokenizer):
    ids = tokenizer.encode(TEXT[0])
    assert "".join(tokenizer.pieces(ids)).replace("▁", " ").strip() == TEXT[0]
    with refused("id 320", error=IndexError):
        tokenizer.decode([320])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_training_is_deterministic_and_depends_on_text_and_settings(kind):
    first = SentencePieceTokenizer.train(TEXT, Data(tokenizer=kind, **SETTINGS))
    assert (
        SentencePieceTokenizer.train(iter(TEXT), Data(tokenizer=kind, **SETTINGS)).digest
        == first.digest
    )
    assert (
        SentencePieceTokenizer.train([*TEXT, "zebra zoo"], Data(tokenizer=kind, **SETTINGS)).digest
        != first.digest
    )
    assert (
        SentencePieceTokenizer.train(
            TEXT, Data(tokenizer=kind, **{**SETTINGS, "vocab_size": 310})
        ).digest
        != first.digest
    )


def test_normalization_and_byte_fallback_have_an_effect():
    nfkc = SentencePieceTokenizer.train(
        TEXT, Data(tokenizer="bpe", **{**SETTINGS, "normalization": "nmt_nfkc"})
    )
    assert nfkc.decode(nfkc.encode("  ＡＢＣ   ½")) == "ABC 1⁄2"
    plain = SentencePieceTokenizer.train(
        TEXT, Data(tokenizer="bpe", **{**SETTINGS, "vocab_size": 60, "byte_fallback": False})
    )
    assert UNK in plain.encode("ß")


def test_long_sentence_is_not_skipped():
    tokenizer = SentencePieceTokenizer.train(
        ["x" * 50_000 + "y"], Data(tokenizer="bpe", **{**SETTINGS, "vocab_size": 264})
    )
    assert (
        "y" in "".join(tokenizer.pieces(tokenizer.encode("y")))
        and len(tokenizer.encode("x" * 50_000)) < 50_000
    )


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_impossible_vocabulary_sizes_are_rejected(kind):
    """And the last number of the message is a size that is possible."""
    for size in (5000, 100):
        with refused("data.vocab_size", str(size)) as caught:
            SentencePieceTokenizer.train(
                TEXT, Data(tokenizer=kind, **{**SETTINGS, "vocab_size": size})
            )
        possible = int(re.findall(r"\d+", str(caught.value))[-1])
        settings = Data(tokenizer=kind, **{**SETTINGS, "vocab_size": possible})
        assert SentencePieceTokenizer.train(TEXT, settings).vocab_size == possible


def test_empty_training_text_is_rejected():
    with refused():
        SentencePieceTokenizer.train(["", "  "], Data(tokenizer="bpe", **SETTINGS))


def test_tokenizer_survives_pickling_and_saving(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "new" / "t.model")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["t.model"]
    for copy in (
        pickle.loads(pickle.dumps(tokenizer)),
        load_tokenizer(tmp_path / "new" / "t.model"),
    ):
        assert copy.digest == tokenizer.digest and copy.encode(TEXT[1]) == tokenizer.encode(TEXT[1])
    # SentencePiece itself reads the model, with the same ids.
    plain = SentencePieceProcessor(model_file=str(tmp_path / "new" / "t.model"))
    assert plain.encode(TEXT[1]) == tokenizer.encode(TEXT[1])


@pytest.mark.parametrize("ids", [{}, dict(pad_id=3), dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3)])
def test_model_with_other_special_ids_is_renumbered(tmp_path, ids):
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        vocab_size=60,
        model_type="bpe",
        minloglevel=2,
        **ids,
    )
    (tmp_path / "other.model").write_bytes(model.getvalue())
    tokenizer = load_tokenizer(tmp_path / "other.model")
    plain = SentencePieceProcessor(model_proto=model.getvalue())
    ours = tokenizer.encode(TEXT[2])
    assert min(ours) > UNK and max(ours) < tokenizer.vocab_size
    assert tokenizer.pieces(ours) == plain.encode(TEXT[2], out_type=str)
    assert tokenizer.decode([*ours, EOS]) == TEXT[2]
    assert tokenizer.encode("ß")[-1] == UNK
    every = tokenizer.pieces(range(tokenizer.vocab_size))
    assert (
        every[:3] == ["<pad>", "</s>", "<unk>"]
        and len(set(every)) == len(every)
        and "<s>" not in every
    )


def test_invalid_tokenizer_files_are_rejected(tmp_path):
    with refused("none.model"):
        load_tokenizer(tmp_path / "none.model")
    for content in (b"", b"some text\n", b'{"kind": "symbols split at spaces", "symbols": [1]}'):
        (tmp_path / "bad.model").write_bytes(content)
        with refused("bad.model"):
            load_tokenizer(tmp_path / "bad.model")
    with refused("tokenizer.model", "source.model", "target.model"):
        TokenizerPair.load(tmp_path)


def test_pairs_joint_and_separate(tmp_path):
    first = SentencePieceTokenizer.train(TEXT, Data(tokenizer="bpe", **SETTINGS))
    second = SentencePieceTokenizer.train(
        TEXT, Data(tokenizer="bpe", **{**SETTINGS, "vocab_size": 310})
    )
    joint, separate = TokenizerPair(first, first), TokenizerPair(first, second)
    assert joint.joint and not separate.joint
    assert len({joint.digest, separate.digest, TokenizerPair(second, first).digest}) == 3

    for pair, names in [
        (joint, ["tokenizer.model"]),
        (separate, ["source.model", "target.model"]),
    ] * 2:
        pair.save(tmp_path / "pair")
        assert sorted(p.name for p in (tmp_path / "pair").iterdir()) == names
        loaded = TokenizerPair.load(tmp_path / "pair")
        assert (loaded.digest, loaded.joint) == (pair.digest, pair.joint)
        assert pickle.loads(pickle.dumps(loaded)).joint == pair.joint
    assert [p.name for p in tmp_path.iterdir()] == ["pair"]

    one_file = TokenizerPair.load(tmp_path / "pair" / "source.model")
    assert one_file.joint and one_file.digest == joint.digest
