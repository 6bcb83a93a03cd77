"""The folder in which a reader follows the documentation."""

import gzip

import pytest
from helpers.documented_commands import ROOT

from t2t_flax.data.sources import toy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkout_with_text(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory):
    return checkout_with_text(tmp_path_factory.mktemp("checkout"))


def checkout_with_text(checkout):
    """A folder like the checkout, with the text files that the pages assume."""
    for name in ("configs", "launch", "benchmarks", "docs"):
        (checkout / name).symlink_to(ROOT / name)
    splits = {
        split: list(toy.pairs(split, count))
        for split, count in (("train", 300), ("valid", 12), ("test", 12))
    }
    sides = [("en", 0), ("de", 1)]
    (checkout / "data").mkdir()
    for split, pairs in splits.items():
        for language, side in sides:
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (checkout / f"{split}.{language}").write_text(text)
            (checkout / "data" / f"{split}.{language}.gz").write_bytes(gzip.compress(text.encode()))
        (checkout / f"{split}.ids").write_text(
            "".join(f"{number // 4}\n" for number in range(len(pairs)))
        )
    for language, side in sides:
        for name in ("bt", "mono"):
            (checkout / f"{name}.{language}").write_text(
                "".join(f"{pair[side]}\n" for pair in splits["train"][:100])
            )
    for name, split in (("train.links", "train"), ("test.gold", "test")):  # of no meaning
        (checkout / name).write_text("0-0\n" * len(splits[split]))
    for name in ("lines.txt", "big.en"):
        (checkout / name).write_text("It is late.\n\nThe house is red.\n")
    multi30k, trees = checkout / "DATA" / "multi30k", checkout / "DATA" / "craft_treebank"
    for path in (multi30k / "tok", multi30k / "raw", multi30k / "wu2021", trees):
        path.mkdir(parents=True)
    for name, split in (("train", "train"), ("val", "valid"), ("test2016", "test")):
        for language, side in sides:
            text = "".join(f"{pair[side]}\n" for pair in splits[split])
            for path in (
                multi30k / "tok" / f"{name}.lc.norm.tok.{language}.gz",
                multi30k / "raw" / f"{name}.{language}.gz",
            ):
                path.write_bytes(gzip.compress(text.encode()))
    codes = b"#version: 0.2\ne n</w>\ne r\nt h\n"
    (multi30k / "wu2021" / "bpe10k.en-de.code.gz").write_bytes(gzip.compress(codes))
    words = "mice n = 5 were fed the a in . ( )".split()
    bank = "".join(
        f"(S (NP (DT The) (NN {words[i % 8]})) (VP (VBD were) (NP (NN {words[i % 5]}) (CD {i % 7}))) (. .))\n"
        for i in range(200)
    )
    for name, text in (("train", bank), ("dev", "\n".join(bank.splitlines()[:9]) + "\n")):
        (trees / f"{name}.trees.gz").write_bytes(gzip.compress(text.encode()))
    return checkout
