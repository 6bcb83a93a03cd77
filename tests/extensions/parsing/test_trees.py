"""Reading and writing bracket files, and the linearized form of trees and its inverse."""

import gzip
import os
import random
from pathlib import Path

import pytest
from helpers.random_trees import random_tree
from helpers.refusals import refused

from t2t_flax.extensions.parsing.source import open_trees
from t2t_flax.extensions.parsing.trees import (
    Node,
    bracketed,
    from_linear,
    leaves,
    linear,
    read_trees,
)

TEXT = "(TOP (S (NP (DT The) (NN dog)) (VP (VBD slept)) (. .)))"


def read(*lines):
    return [tree for _, tree in read_trees(lines, "x.mrg")]


def words(tree):
    return [leaf.word for leaf in leaves(tree)]


def test_penn_treebank_format_is_read():
    """Trees over several lines, empty roots, function tags, indices, traces, empty constituents."""
    lines = [
        "( (S", "    (NP-SBJ-1 (NNP Ms.) (NNP Haag) )", "    (VP (VBZ plays)", "      (NP=2 (NNP Elianti) )",
        "      (S (NP-SBJ (-NONE- *-1) )))", "    (. .) ))", "", "( (X|Y (-LRB- -LRB-)) )",
    ]  # fmt: skip
    first, second = [bracketed(tree) for tree in read(*lines)]
    assert first == "(TOP (S (NP (NNP Ms.) (NNP Haag)) (VP (VBZ plays) (NP (NNP Elianti))) (. .)))"
    assert second == "(TOP (X (-LRB- -LRB-)))"
    assert [number for number, _ in read_trees(lines, "x")] == [1, 8]
    assert [leaf.word for leaf in leaves(read("(NP (CD 1\\/2) (SYM \\*))")[0])] == ["1/2", "*"]


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (["(S (NN a)))"], ("line 2:", "')'")),
        (["ok (S (NN a))"], ("line 2:", "'ok'")),
        (["(S (NN a)"], ("line 2:", "1 ')'")),
        (["()"], ("line 2:",)),
        (["(S (NP) (NN a))"], ("line 2:", "(NP)")),
        (["(S (NN a b))"], ("line 2:",)),
        (["(S (NN a) b)"], ("line 2:",)),
        (["(S (NP (-NONE- *)))"], ("line 2:",)),
        (["(S (=2 (NN a)))"], ("line 2:", "(=2")),
        ([TEXT, "(S (NN a)))"], ("line 3:",)),
        (["(S (NP (NN a)", "(VP (VB b))"], ("line 2:", "2 ')'")),
        (["(NP " * 300 + "(NN a)" + ")" * 300], ("line 2:", "200")),
    ],
)
def test_malformed_trees_are_refused_with_their_line(lines, names):
    with refused("x.mrg", *names):
        read(TEXT, *lines)


def test_linearization_is_invertible():
    rng = random.Random(0)
    for _ in range(300):
        tree = Node("TOP", tuple(random_tree(rng, 1) for _ in range(rng.randint(1, 2))))
        assert from_linear(linear(tree), words(tree)) == (tree, True)


@pytest.mark.parametrize("symbols, repaired", [
    ("(S (NP DT NN )NP (VP VBD )VP .", "(TOP (S (NP (DT a) (NN b)) (VP (VBD c)) (. d)))"),  # truncated
    ("(S (NP DT NN (VP VBD )VP . )S", "(TOP (S (NP (DT a) (NN b) (VP (VBD c)) (. d))))"),  # an unclosed bracket
    ("(S DT )NP NN VBD . )S", "(TOP (S (DT a) (NN b) (VBD c) (. d)))"),  # a closing bracket without an opening one
    ("(S (NP DT NN )NP )S", "(TOP (S (NP (DT a) (NN b) (XX c) (XX d))))"),  # too few tags
    ("(S DT NN VBD . NN NN )S", "(TOP (S (DT a) (NN b) (VBD c) (. d)))"),  # too many
    ("(S (NP )NP DT NN VBD . )S", "(TOP (S (DT a) (NN b) (VBD c) (. d)))"),  # an empty constituent
    ("", "(TOP (XX a) (XX b) (XX c) (XX d))"),
    ("(S (NP", "(TOP (S (NP (XX a) (XX b) (XX c) (XX d))))"),
])  # fmt: skip
def test_malformed_outputs_are_repaired(symbols, repaired):
    tree, well_formed = from_linear(symbols, "a b c d".split())
    assert bracketed(tree) == repaired and not well_formed


def test_any_output_becomes_a_tree_over_the_words():
    rng = random.Random(1)
    symbols = ["(S", "(NP", ")S", ")NP", "NN", ".", "<unk>", "(", ")"]
    for _ in range(500):
        text = " ".join(rng.choice(symbols) for _ in range(rng.randrange(15)))
        sentence = [f"w{i}" for i in range(rng.randint(1, 6))]
        tree, well_formed = from_linear(text, sentence)
        assert words(tree) == sentence
        assert well_formed == (linear(tree) == text)


def test_corpus_of_several_files(tmp_path):
    (tmp_path / "wsj").mkdir()
    (tmp_path / "wsj" / "b.mrg").write_text("\n\n" + TEXT + "\n")
    (tmp_path / "wsj" / "a.mrg").write_text(TEXT.replace("dog", "cat") + "\n" + TEXT + "\n")
    with gzip.open(tmp_path / "c.trees.gz", "wt") as file:
        file.write(TEXT + "\n")
    source = open_trees("wsj/*.mrg, c.trees.gz", root=str(tmp_path), key="config.data.train")
    pairs = list(source.pairs())
    assert [pair[0].split()[1] for pair in pairs] == [
        "cat",
        "dog",
        "dog",
        "dog",
    ] and source.count == 4
    assert source.where(2).endswith("b.mrg line 3")
    assert (
        source.fingerprint() != open_trees("c.trees.gz", root=str(tmp_path), key="k").fingerprint()
    )


def test_missing_and_empty_corpora_are_refused(tmp_path):
    (tmp_path / "e.mrg").touch()
    with refused("config.data.train", "'no.mrg'"):
        open_trees("no.mrg", root=str(tmp_path), key="config.data.train")
    (tmp_path / "f.mrg").write_text(TEXT)
    with refused("e.mrg"):
        list(open_trees("f.mrg,e.mrg", root=str(tmp_path), key="k").pairs())


def test_repetitive_outputs_of_any_depth_are_repaired():
    """Outputs of a search that repeats one symbol until the cap."""
    sentence = ["a", "(b)"]
    for text in ("(NP " * 900, "(NP " * 900 + "NN NN " + ")NP " * 900):
        tree, well_formed = from_linear(text, sentence)
        assert words(tree) == sentence and not well_formed
        (again,) = read(bracketed(tree))
        assert words(again) == ["a", "-LRB-b-RRB-"]


@pytest.mark.real_data
def test_real_treebank_round_trips():
    folder = Path(os.environ.get("T2T_FLAX_DATA", "")) / "craft_treebank"
    if not os.environ.get("T2T_FLAX_DATA") or not folder.exists():
        pytest.skip("T2T_FLAX_DATA has no craft_treebank")
    with gzip.open(folder / "dev.trees.gz", "rt") as file:
        lines = file.read().splitlines()
    trees = [tree for _, tree in read_trees(lines, "dev")]
    assert [bracketed(tree) for tree in trees] == lines and len(lines) == 2780
    assert all(from_linear(linear(tree), words(tree)) == (tree, True) for tree in trees)
