"""subword-nmt's codes: the published segmentation, and errors for invalid files."""

import gzip
import logging

import pytest
from etils import epath
from helpers.configs import small_config
from helpers.refusals import assert_names, refused

from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.sources.text import lines
from t2t_flax.data.tokenizers import load_tokenizer
from t2t_flax.extensions.subwords.subword_nmt import read_codes, with_vocabulary
from t2t_flax.tasks import task_of

CODES = "#version: 0.2\na n\nan d</w>\nd o\ndo g</w>\n"


@pytest.mark.smoke
def test_codes_split_words_and_decoding_joins_them(tmp_path):
    tokenizer = with_vocabulary(CODES, ["a dog and a dogma", "and  sand"])
    ids = tokenizer.encode("dog dogma sand")
    assert tokenizer.pieces(ids)[0] == "dog" and tokenizer.pieces(ids)[1].endswith("@@")
    assert tokenizer.decode(ids) == "dog dogma sand"
    assert tokenizer.encode("dog").count(2) == 0 and 2 in tokenizer.encode("ü")
    assert tokenizer.vocab_size == 3 + len(
        {
            p
            for s in ("a dog and a dogma", "and sand")
            for p in tokenizer.pieces(tokenizer.encode(s))
        }
    )
    tokenizer.save(tmp_path / "t")
    loaded = load_tokenizer(tmp_path / "t")
    assert (loaded.digest, loaded.encode("dogma")) == (tokenizer.digest, tokenizer.encode("dogma"))
    with pytest.raises(IndexError):
        tokenizer.decode([999])


def test_only_a_newline_ends_a_line_of_codes(tmp_path):
    (tmp_path / "codes").write_bytes(gzip.compress(f"{CODES}o \u2028\nd \x1c</w>\n".encode()))
    codes = read_codes(epath.Path(tmp_path / "codes"))
    tokenizer = with_vocabulary(codes, ["do\u2028d dog"])
    assert len(codes.removesuffix("\n").split("\n")) == 7 and tokenizer.encode("dog").count(2) == 0


def test_untokenized_text_gives_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "t2t_flax"):
        with_vocabulary(CODES, ["a dog .", "and a dog , and a dog ."])
        assert not caplog.records
        with_vocabulary(CODES, ["A dog.", "And, a dog."])
    assert_names(caplog.text, "data.tokenizer", "2 sentences")


def test_invalid_codes_are_rejected(tmp_path):
    (tmp_path / "text").write_text("not a list of merges\n")
    (tmp_path / "codes.gz").write_bytes(gzip.compress(CODES.encode())[:-9])
    for name in ("none", "text", "codes.gz"):
        with refused("data.tokenizer_model", f"{tmp_path}/{name}"):
            read_codes(epath.Path(tmp_path / name))
    with refused():
        with_vocabulary(CODES, ["", " "])


@pytest.mark.parametrize("joint", [True, False])
def test_run_prepares_with_given_codes_and_own_vocabulary(tmp_path, joint):
    (tmp_path / "codes").write_text(CODES)
    (tmp_path / "a.en").write_text("a dog and a dog\nand a sand\n")
    (tmp_path / "a.de").write_text("ein dog\nund sand\n")
    data = dict(
        root=str(tmp_path),
        train="a.en,a.de",
        tokenizer="subword_nmt",
        tokenizer_model="codes",
        joint_vocabulary=joint,
    )
    config = small_config(data=data, model=dict(tie_embeddings="all" if joint else "decoder"))
    corpus = prepare_corpus(task_of(config), tmp_path / "run")
    assert corpus.tokenizers.joint == joint and corpus.train.num_pairs == 2
    assert (
        corpus.tokenizers.source.decode(corpus.train.source(0)[:-1].tolist()) == "a dog and a dog"
    )
    tagged = small_config(
        data=data,
        model=dict(tie_embeddings="all" if joint else "decoder"),
        mixtures=dict(tags="train=<t>"),
    )
    first, again = (prepare_corpus(task_of(tagged), tmp_path / "tagged") for _ in range(2))
    assert first.train.digest == again.train.digest != corpus.train.digest, (
        "a run is resumed with the tag"
    )
    source, (plain, ids) = (
        first.tokenizers.source,
        (one.train.source(0).tolist() for one in (corpus, first)),
    )
    assert ids[0] == source.control_symbols["<t>"] and len(ids) == len(plain) + 1 and 2 not in ids
    assert source.decode(ids) == "a dog and a dog" and ids[0] not in source.encode("a <t> dog")
    small = small_config(
        data=data | dict(vocab_size=8), model=dict(tie_embeddings="all" if joint else "decoder")
    )
    with refused("data.vocab_size", "8"):
        prepare_corpus(task_of(small), tmp_path / "other")


@pytest.mark.slow
def test_published_codes_give_the_published_vocabulary(real_data):
    """Wu et al. 2021 have 9,708 types over both sides of the training text.

    The longest sentences have 45 and 51 pieces.
    """
    folder = epath.Path(real_data) / "multi30k"
    codes = read_codes(folder / "wu2021" / "bpe10k.en-de.code.gz")
    sides = [
        list(lines(folder / "tok" / f"train.lc.norm.tok.{language}.gz"))
        for language in ("en", "de")
    ]
    tokenizer = with_vocabulary(codes, [*sides[0], *sides[1]])
    assert tokenizer.vocab_size == 9708 + 3
    longest = [max(len(tokenizer.encode(s)) for s in side) for side in sides]
    totals = [sum(len(tokenizer.encode(s)) for s in side) for side in sides]
    assert longest == [45, 51] and totals == [397_793, 400_507]
    reference = list(lines(folder / "tok" / "test2016.lc.norm.tok.de.gz"))
    assert not any(2 in tokenizer.encode(s) for s in reference), (
        "the reference of test2016 has no unknown piece"
    )
    assert [tokenizer.decode(tokenizer.encode(s)) for s in reference] == [
        " ".join(s.split()) for s in reference
    ]
