"""Numbers of words on both sides: what they say, and that text and trees come back as they were."""

import itertools
import random

import pytest
from helpers.configs import small_config
from helpers.random_trees import random_tree
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.config.data_keys import EOS, UNK
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.sources import Source
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.extensions.parsing.numbered import NumberedSymbols
from t2t_flax.extensions.parsing.trees import Node, is_bracket, linear
from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer
from t2t_flax.tasks import task_of

SENTENCES = ["the dog saw a cat .", "a fish", "-LRB- the <word> cat#0 -RRB-", "saw"]
TREES = ["(S DT # NN )S", "(X VB )X ,"]


def numbered(count: int, **groups) -> TokenizerPair:
    data = dict(task="parsing", joint_vocabulary=False, vocab_size=40 + count, byte_fallback=False)
    config = small_config(
        data=data, model=dict(tie_embeddings="decoder"), parsing=dict(word_numbers=count), **groups
    )
    return task_of(config).train_tokenizers(Pairs("pairs"))


class Pairs(Source):
    def read(self):
        return zip(SENTENCES, TREES * 2, strict=True)

    def fingerprint(self):
        return ""


@pytest.mark.parametrize("count", [1, 3, 16])
def test_each_source_word_is_followed_by_its_number(count):
    words = numbered(count).source
    for sentence in [*SENTENCES, " ".join(SENTENCES)]:
        pieces = words.pieces(words.encode(sentence))
        parts, at = [], 0
        for k, _ in enumerate(sentence.split()):
            end = pieces.index(f"<word{k % count}>", at)
            parts.append("".join(pieces[at:end]).removeprefix("▁"))
            at = end + 1
        assert parts == sentence.split() and at == len(pieces)
        assert words.decode(words.encode(sentence)) == sentence and not words.changes(sentence)


@pytest.mark.parametrize("count", [0, 3])
def test_a_tag_is_one_symbol_before_the_words(count):
    words = numbered(count, mixtures=dict(tags="train=<bt>")).source
    tagged, plain = words.encode("<bt> the dog"), words.encode("the dog")
    assert tagged == [words.control_symbols["<bt>"], *plain] and list(words.control_symbols) == [
        "<bt>"
    ]


@given(st.integers(0, 10**6), st.integers(1, 7))
def test_each_tag_has_the_number_of_its_word_and_the_tree_comes_back(seed, count):
    tree = random_tree(random.Random(seed))
    text = linear(Node("TOP", (tree,)))
    symbols = NumberedSymbols.of([text], count)
    ids = symbols.encode(text)
    assert symbols.decode([*ids, EOS]) == text
    tags = [piece for piece in symbols.pieces(ids) if not is_bracket(piece)]
    assert [int(tag.rpartition("#")[2]) for tag in tags] == [k % count for k in range(len(tags))]


def test_tags_have_all_numbers_and_other_symbols_are_unknown():
    symbols = NumberedSymbols.of(["(S NN # )S"], 3)
    assert set(symbols.pieces(range(3, symbols.vocab_size))) == {
        "(S", ")S", *(f"{tag}#{k}" for tag, k in itertools.product("NN #".split(), range(3)))
    }  # fmt: skip
    ids = symbols.encode("(S NN VB # (X NN")
    assert ids[2] == ids[4] == UNK and symbols.decode(ids) == "(S NN <unk> # <unk> NN"
    # An unknown tag counts as a word, an unknown bracket does not.
    assert symbols.pieces(ids[-1:]) == ["NN#0"]


def test_files_are_read_back(tmp_path):
    pair = numbered(4)
    pair.save(tmp_path / "tokenizer")
    loaded = TokenizerPair.load(tmp_path / "tokenizer")
    assert loaded.digest == pair.digest and loaded.vocab_sizes == pair.vocab_sizes
    assert loaded.source.encode(SENTENCES[2]) == pair.source.encode(SENTENCES[2])
    assert loaded.target.encode(TREES[0]) == pair.target.encode(TREES[0])


def test_runs_that_share_a_cache_have_their_own_tokenizers(tmp_path):
    (tmp_path / "train.trees").write_text(
        "(TOP (S (DT the) (NN dog)))\n(TOP (S (NN fish) (VB saw)))\n" * 20
    )
    sources = dict(
        train="train.trees", valid="", test="", root=str(tmp_path), cache=str(tmp_path / "cache")
    )

    def target(count):
        data = sources | dict(
            task="parsing", joint_vocabulary=False, vocab_size=24, byte_fallback=False
        )
        config = small_config(
            data=data, model=dict(tie_embeddings="decoder"), parsing=dict(word_numbers=count)
        )
        return prepare_corpus(task_of(config), tmp_path / str(count)).tokenizers.target

    assert [type(target(count)) for count in (0, 2)] == [SymbolTokenizer, NumberedSymbols]
    assert [target(count).count for count in (2, 4)] == [2, 4]
