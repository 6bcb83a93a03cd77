"""The built-in corpus, and the sentences of it that the documentation shows."""

import hashlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers.refusals import refused

from t2t_flax.data.sources import open_source, toy

ROOT = Path(__file__).parents[2]
NEWCOMER = [
    line.split("\t")
    for line in Path(__file__).with_name("newcomer_sentences.tsv").read_text().splitlines()
]
SHA256 = {
    "train": "dddc242426f52dc5ee0e9bfa5e80147061d94283ed8be73f4ea4a8cb78b666c9",
    "valid": "1b7b6c34e86010753a8792dbe147c17f322c685d47e46cfbc32c6e3ddae513de",
    "test": "ab20b3e36cfb47b4848d241247996125d2bf8dece8c6b6f2f733f33a99f21915",
}
"""Of the text of each split, to which the published numbers belong."""


def open_toy(spec, languages="en-de"):
    source, target = languages.split("-")
    return open_source(spec, source_language=source, target_language=target)


@pytest.fixture(scope="module")
def training() -> dict[str, str]:
    return dict(toy.pairs("train"))


@pytest.mark.parametrize("split", toy.COUNTS)
def test_pairs_match_the_recorded_digests(split):
    pairs = list(open_toy(f"toy:{split}").pairs())
    assert len(pairs) == toy.COUNTS[split] == open_toy(f"toy:{split}").count
    text = "".join(f"{english}\t{german}\n" for english, german in pairs)
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256[split]


def test_count_selects_the_first_pairs():
    assert list(open_toy("toy:train:20").pairs()) == list(open_toy("toy:train:30").pairs())[:20]


def test_files_are_part_of_the_package():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]
    (pattern,) = data["t2t_flax.data.sources"]
    assert {toy.path_of(split) for split in toy.COUNTS} == set(
        Path(toy.__file__).parent.glob(pattern)
    )


def test_corpus_is_read_without_the_generators_libraries():
    script = (
        "import sys; from t2t_flax.data.sources import toy; next(toy.pairs('test')); "
        "print(sorted({'babel', 'num2words', 'jax'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_both_directions():
    forward, backward = open_toy("toy:valid:20"), open_toy("toy:valid:20", "de-en")
    pairs = list(forward.pairs())
    assert forward.count == len(pairs) == 20 and pairs == list(forward.pairs())
    assert list(backward.pairs()) == [(target, source) for source, target in pairs]
    assert forward.where(4) == "toy:valid:20 pair 5"
    with refused("'en'", "'fr'"):
        open_toy("toy:valid", "en-fr")


def test_fingerprint_identifies_the_pairs():
    sources = [open_toy("toy:valid:20"), open_toy("toy:valid:21"), open_toy("toy:test:20")]
    sources.append(open_toy("toy:valid:20", "de-en"))
    assert len({source.fingerprint() for source in sources}) == len(sources)


def test_fingerprint_is_that_of_the_published_numbers():
    assert (
        open_toy("toy:train").fingerprint()
        == "4d9740fdb4ae2001a0fba732cc36e417e7bc21ae480fc682595b02032de2a8a1"
    )


def test_newcomer_references_agree_with_the_corpus(training):
    assert len({english for english, _ in NEWCOMER}) == len(NEWCOMER)
    for english, german in NEWCOMER:
        assert training.get(english, german) == german
    assert sum(english not in training for english, _ in NEWCOMER) >= 80
