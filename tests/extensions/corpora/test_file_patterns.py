"""Patterns of file names: files in the order of their names, paired by what the wildcards match.

Compressed files.
"""

import bz2
import fnmatch

import pytest
from helpers.corpora import open_en_de
from helpers.refusals import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.data.sources.files import _regex


@pytest.fixture
def folder(tmp_path):
    """Three pairs of files; the second is empty."""
    for part, count in (("00", 2), ("01", 0), ("10", 1)):
        (tmp_path / part).mkdir()
        for side in ("en", "de"):
            text = "".join(f"{side} {part} {i}\n" for i in range(count))
            (tmp_path / f"train.{part}.{side}").write_text(text)
            (tmp_path / part / f"all.{side}").write_text(text)
    (tmp_path / ".train.99.en").write_text("hidden\n")
    (tmp_path / "train.xx.en").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "spec",
    [
        "train.*.en,train.*.de",
        "train.??.en , train.??.de",
        "train.[01]?.en,train.[!x]?.de",
        "*/all.en,*/all.de",
    ],
)
def test_files_are_paired_and_read_in_the_order_of_their_names(folder, spec):
    expected = [("en 00 0", "de 00 0"), ("en 00 1", "de 00 1"), ("en 10 0", "de 10 0")]
    for root, of_root in (
        (folder, spec),
        ("", spec.replace("*/", f"{folder}/*/").replace("train", f"{folder}/train")),
    ):
        source = open_en_de(of_root, root)
        # Without reading before.
        assert source.where(2).count("10") >= 2 and source.where(2).endswith("line 1")
        assert list(source.pairs()) == list(source.pairs()) == expected and source.count == 3
        assert len(source.files) == 6 and source.where(1).endswith("de line 2")


def test_the_fingerprint_covers_every_file(folder):
    before = open_en_de("train.*.en,train.*.de", folder).fingerprint()
    for side in ("en", "de"):
        (folder / f"train.01.{side}").write_text("new\n")
    assert open_en_de("train.*.en,train.*.de", folder).fingerprint() != before


@pytest.mark.parametrize(
    ("removed", "spec", "names"),
    [
        ("train.10.de", "train.*.en,train.*.de", ("train.10.en", "train.*.de")),
        ("train.00.en", "train.*.en,train.*.de", ("train.00.de", "train.*.en")),
        ("train.10.de", "train.*.en,train.00.de", ("train.00.en", "train.00.de")),
        ("train.10.de", "none.*.en,none.*.de", ("none.*.en",)),
        ("train.10.de", "**/all.en,**/all.de", ("**",)),
    ],
)
def test_files_without_a_partner_are_named(folder, removed, spec, names):
    (folder / removed).unlink()
    with refused("config.data.train", *names):
        open_en_de(spec, folder)


def test_a_file_that_has_the_pattern_for_its_name_is_that_file(tmp_path):
    for side in ("en", "de"):
        (tmp_path / f"train[1].{side}").write_text(f"{side}\n")
    assert list(open_en_de("train[1].en,train[1].de", tmp_path).pairs()) == [("en", "de")]


def test_several_references_match_too(folder):
    source = open_en_de("train.*.en,train.*.de,train.*.de", folder)
    assert list(source.references())[2] == ("de 10 0", "de 10 0") and source.reference_count == 2


NAME = st.text("ab[]!-*?.\\", min_size=1, max_size=6)


@given(pattern=NAME, name=st.text("ab[]!-.\\", min_size=1, max_size=5))
@settings(max_examples=300, deadline=None)
def test_names_match_as_in_the_standard_library(pattern, name):
    assert bool(_regex(pattern).fullmatch(name)) == fnmatch.fnmatchcase(name, pattern)


def test_bz2_is_read_and_its_damage_named(tmp_path):
    for side in ("en", "de"):
        (tmp_path / f"t.{side}.bz2").write_bytes(bz2.compress(f"{side}\n".encode() * 50_000))
    assert list(open_en_de("t.en.bz2,t.de.bz2", tmp_path).pairs()) == [("en", "de")] * 50_000
    whole = (tmp_path / "t.en.bz2").read_bytes()
    for damaged in (whole[:-20], whole[:30] + b"\0" * 10 + whole[40:], b"text\n"):
        (tmp_path / "t.en.bz2").write_bytes(damaged)
        with refused("t.en.bz2", "line"):
            list(open_en_de("t.en.bz2,t.de.bz2", tmp_path).pairs())
