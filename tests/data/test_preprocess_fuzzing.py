"""Fuzzing of corpora: every line is used or counted, or an error names file and line.

Lines stay aligned.
"""

import codecs
import gzip
import sys
import tempfile
from pathlib import Path

import pytest
from helpers.corpora import open_pairs
from helpers.refusals import assert_names, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.cli.lines import iterate_lines
from t2t_flax.config import Data
from t2t_flax.config.data_keys import EOS
from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.preprocess import Policies, prepare_split
from t2t_flax.data.sources import open_source
from t2t_flax.data.sources.text import lines
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.errors import UserError

BOM = codecs.BOM_UTF8
PIECES = [
    b"\n", b"\r\n", b"\r", b"\t", b"\0", b" ", b"\x0b\x0c\x1c", BOM, "\u2028\u0085\ufeff\ufffe".encode(),
    b"a house", "Straße 😀".encode(), b"\xff", b"\xc3", b"\xed\xa0\x80",
]  # fmt: skip
ANY = st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join) | st.binary(max_size=20)
VALID = st.lists(st.sampled_from(PIECES[:-3]), max_size=12).map(b"".join)


def expected_lines(data: bytes) -> list[bytes]:
    """Lines of a file by their definition.

    Between bytes 0x0A, less one 0x0D at the end, and less a BOM at the beginning.
    """
    raw = data.removeprefix(BOM).split(b"\n")
    return [line.removesuffix(b"\r") for line in (raw if raw[-1] else raw[:-1])]


def first_invalid(texts: list[bytes]) -> int | None:
    for number, text in enumerate(texts, 1):
        try:
            text.decode()
        except UnicodeDecodeError:
            return number
    return None


def write(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def corpus(folder: Path, spec: str):
    return open_source(spec, root=str(folder), source_language="en", target_language="de")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    return train_tokenizers(
        open_pairs(folder, [("a house", "Straße 😀")] * 20),
        Data(tokenizer="bpe", vocab_size=280, joint_vocabulary=True, normalization="identity"),
    )


def check(
    folder: Path,
    spec: str,
    expected: list[tuple[str, str]] | None,
    places: list[list[str]],
    tokenizers,
) -> None:
    """The source yields these pairs, or (None) raises an error that names one of the places."""
    if not expected:
        with refused() as read:
            list(corpus(folder, spec).pairs())
        with refused() as prepared:
            prepare_split(corpus(folder, spec), tokenizers, folder / "store", POLICIES)
        for message in (str(read.value), str(prepared.value)) if expected is None else ():
            assert any(all(name in message for name in place) for place in places), (
                message,
                places,
            )
        assert not (folder / "store").exists()
        return
    source = corpus(folder, spec)
    expected = [tuple(side.replace("\r", " ") for side in pair) for pair in expected]
    assert list(source.pairs()) == expected
    nonempty = [pair for pair in expected if all(side.strip() for side in pair)]
    if not nonempty:
        with refused(f"{len(expected)}:", f"{len(expected)} with"):
            prepare_split(source, tokenizers, folder / "store", POLICIES)
        return
    store = prepare_split(source, tokenizers, folder / "store", POLICIES)
    counts = {name: store.meta[name] for name in ("pairs_read", "pairs", "dropped", "empty")}
    dropped = len(expected) - len(nonempty)
    assert counts == {
        "pairs_read": len(expected),
        "pairs": len(nonempty),
        "dropped": dropped,
        "empty": dropped,
    }
    for i, (source_text, target_text) in enumerate(nonempty):
        assert store.source(i).tolist() == [*tokenizers.source.encode(source_text), EOS]
        assert store.target(i).tolist() == [*tokenizers.target.encode(target_text), EOS]


POLICIES = Policies(max_length=10_000, on_too_long="drop", empty_lines="drop")


@settings(max_examples=60)
@given(st.data())
def test_parallel_files_of_random_bytes(tokenizers, data):
    suffixes = [data.draw(st.sampled_from(["", ".gz"])) for _ in range(2)]
    kind = data.draw(st.sampled_from([ANY, VALID]))
    sides = [data.draw(kind), data.draw(kind)]
    if data.draw(st.booleans()):  # of equal length, which is rare by chance
        count = data.draw(st.integers(1, 6))
        line = kind.map(lambda text: text.replace(b"\n", b""))
        sides = [
            b"".join(
                data.draw(line) + data.draw(st.sampled_from([b"\n", b"\r\n"])) for _ in range(count)
            )
            for _ in "st"
        ]
    with tempfile.TemporaryDirectory() as name:
        folder, names = (
            Path(name),
            [f"{side}{suffix}" for side, suffix in zip("st", suffixes, strict=True)],
        )
        for file, content in zip(names, sides, strict=True):
            write(folder / file, content)
        texts = [expected_lines(content) for content in sides]
        bad = {file: first_invalid(text) for file, text in zip(names, texts, strict=True)}
        places = [[file, f"line {line}:"] for file, line in bad.items() if line]
        counts = [len(text) for text in texts]
        if counts[0] != counts[1]:
            places.append([names[0], f"{counts[0]} lines", names[1], f"has {counts[1]}"])
        expected = (
            None
            if places
            else [tuple(t.decode() for t in pair) for pair in zip(*texts, strict=True)]
        )
        check(folder, ",".join(names), expected, places, tokenizers)


@given(
    content=VALID,
    offset=st.integers(0, 200),
    damage=st.sampled_from(["cut", "flip", "more"]),
    byte=st.integers(1, 255),
)
def test_damaged_gzip_is_reported_or_harmless(content, offset, damage, byte):
    packed = gzip.compress(content, mtime=0)
    offset %= len(packed)
    broken = {
        "cut": packed[:offset],
        "flip": packed[:offset] + bytes([packed[offset] ^ byte]) + packed[offset + 1 :],
        "more": packed + bytes([byte]),
    }[damage]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.gz"
        path.write_bytes(broken)
        try:
            assert list(lines(path)) in ([text.decode() for text in expected_lines(content)], [])
            if not list(lines(path)):
                assert not content, "only a text without lines has none"
        except UserError as error:
            assert_names(str(error), str(path))
        assert len(file_sha256(path)) == 64


@given(content=ANY, standard_input=st.booleans())
def test_translation_input_of_random_bytes(content, standard_input):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "lines.txt"
        path.write_bytes(content)
        with path.open() as file:
            patch.setattr(sys, "stdin", file)
            name = "-" if standard_input else str(path)
            bad = first_invalid(expected_lines(content))
            if bad:
                with refused(f"line {bad},"):
                    list(iterate_lines(name))
            else:
                assert list(iterate_lines(name)) == [
                    text.decode() for text in expected_lines(content)
                ]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_byte_order_mark_is_stripped(tmp_path, suffix):
    write(tmp_path / f"with{suffix}", BOM + b"Hello world\n" + BOM + b"second\n")
    assert list(lines(tmp_path / f"with{suffix}")) == ["Hello world", "\ufeffsecond"], (
        "elsewhere it is a character"
    )
