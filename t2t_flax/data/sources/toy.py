"""Built-in English-German corpus, `toy:SPLIT` or `toy:SPLIT:COUNT`.

COUNT selects the first COUNT pairs. The pairs come with the package, compressed; `python -m
tools.toy_corpus` writes the files. Each English sentence has exactly one translation, and no
sentence is in two splits.
"""

import itertools
import lzma
from collections.abc import Iterator
from pathlib import Path

from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.errors import UserError
from t2t_flax.language import Language

COUNTS = {"train": 90_000, "valid": 500, "test": 500}
"""Number of pairs in each split."""
GENERATOR = ("toy 2", "babel 2.18.0", "num2words 0.5.14")
"""Versions of the generator, and of the libraries that wrote the corpus's numbers.

They are part of the fingerprint.
"""


class ToySource(Source):
    """First `count` pairs of a split.

    Args:
        swapped: True for German to English.
    """

    def __init__(self, spec: str, split: str, count: int, *, swapped: bool = False):
        super().__init__(spec, count)
        self._split, self._swapped = split, swapped

    def read(self):
        for english, german in pairs(self._split, self.count):
            yield (german, english) if self._swapped else (english, german)

    def fingerprint(self):
        content = sha256_of(*GENERATOR, self._split, str(self.count), "0")
        return sha256_of("toy", content, "de-en" if self._swapped else "en-de")


def pairs(split: str, count: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield the first `count` (English, German) pairs of a split; all without a count.

    Args:
        split: "train", "valid" or "test".
    """
    with lzma.open(path_of(split), "rt", encoding="utf-8", newline="\n") as file:
        for line in itertools.islice(file, count):
            english, german = line.removesuffix("\n").split("\t")
            yield english, german


def path_of(split: str) -> Path:
    """Return the path of a split's compressed TSV file."""
    return Path(__file__).with_name(f"toy_en_de.{split}.tsv.xz")


def open_spec(spec: str, context: Context) -> ToySource:
    """Open a split of the corpus.

    Raises UserError for an unknown split, count or language.
    """
    split, colon, count = spec.removeprefix("toy").removeprefix(":").partition(":")
    label, languages = context.label, context.languages
    if split not in COUNTS:
        raise UserError(
            f"{label}: the built-in corpus has no split {split!r}; it has {', '.join(COUNTS)}"
        )
    if colon and not (count.isdecimal() and int(count) > 0):
        raise UserError(
            f"{label}: expected toy:SPLIT or toy:SPLIT:COUNT with a COUNT of at least 1, not"
            f" {count!r}"
        )
    if int(count or 0) > COUNTS[split]:
        raise UserError(
            f"{label}: toy:{split} has {COUNTS[split]:,} pairs, not {int(count):,}; lower COUNT, or"
            " write a larger corpus to a file with `python -m tools.toy_corpus` in a checkout"
        )
    codes = [Language.read(language).base for language in languages]
    if set(codes) != {"en", "de"}:
        raise UserError(
            f"{label}: the built-in corpus is English and German, so config.data.source_language"
            " and config.data.target_language must be en and de, in either order, not"
            f" {languages[0]!r} and {languages[1]!r}"
        )
    swapped = codes[0] == "de"
    return ToySource(spec, split, int(count or COUNTS[split]), swapped=swapped)
