"""Where sentence pairs come from: text files, one TSV file, a TFDS dataset, or the built-in corpus."""

import hashlib
import itertools
import os
from collections.abc import Iterator

from etils import epath

from t2t_flax.data.sources import base
from t2t_flax.data.sources.base import Source, Survey
from t2t_flax.data.sources.lines import check_rereadable, file_sha256, lines, scan
from t2t_flax.errors import UserError

FORMS = (
    "'SRC,TGT' (two text files, plain or .gz), 'SRC,REF1,REF2' (several references, of validation and test text), "
    "'FILE.tsv' or 'FILE.tsv.gz' (source TAB target), 'tfds:NAME:SPLIT', 'toy:SPLIT' or 'toy:SPLIT:COUNT'"
)
TOY_COUNTS = {"train": 90_000, "valid": 500, "test": 500}


class TextSource(Source):
    """A file of sources and one or more of references, line i of each being a translation of line i of the first."""

    def __init__(self, spec: str, source: epath.Path, *references: epath.Path):
        super().__init__(spec)
        self._paths = source, *references

    @property
    def reference_count(self):
        return len(self._paths) - 1

    def read(self):
        return ((source, target) for source, target, *_ in self._lines())

    def references(self):
        return (tuple(targets) for _, *targets in self._lines())

    def _lines(self) -> Iterator[tuple[str, ...]]:
        streams = [lines(path) for path in self._paths]
        for i, line in enumerate(itertools.zip_longest(*streams)):
            if None in line:
                left = (0 if text is None else 1 + sum(1 for _ in s) for text, s in zip(line, streams, strict=True))
                self._refuse(*(i + count for count in left))
            yield line

    def fingerprint(self):
        return _sha256("text", *map(file_sha256, self._paths))

    def survey(self):
        scans = [scan(path, base.STRIDE) for path in self._paths]
        if len({found.lines for found in scans}) > 1:
            self._refuse(*(found.lines for found in scans))
        marks = zip(*(found.offsets for found in scans), strict=False)
        numbered = tuple((base.STRIDE * i, offsets) for i, offsets in enumerate(marks))
        return Survey(_sha256("text", *(found.sha256 for found in scans)), scans[0].lines, numbered)

    def read_range(self, first, last, survey):
        line, offsets = _mark_before(survey, first)
        pair = list(zip(self._paths, offsets or (0,) * len(self._paths), strict=True))[:2]
        streams = [lines(path, line, offset) for path, offset in pair]
        return itertools.islice(zip(*streams, strict=False), first - line, last - line)

    def _refuse(self, *counts: int):
        (first, count), *others = zip(self._paths, counts, strict=True)
        raise UserError(
            f"{first} has {count} lines and {' and '.join(f'{path} has {n}' for path, n in others)}: "
            "line i of one must be the translation of line i of the other"
        )

    def where(self, i):
        return ", ".join(f"{path} line {i + 1}" for path in self._paths)


class TsvSource(Source):
    """One file with source TAB target on each line."""

    def __init__(self, spec: str, path: epath.Path):
        super().__init__(spec)
        self._path = path

    def read(self):
        return self._split(0, lines(self._path))

    def _split(self, first: int, texts: Iterator[str]):
        for i, line in enumerate(texts, first):
            sides = line.split("\t")
            if len(sides) != 2:
                raise UserError(f"{self.where(i)}: expected source TAB target, found {len(sides) - 1} TABs, not 1")
            yield sides[0], sides[1]

    def fingerprint(self):
        return _sha256("tsv", file_sha256(self._path))

    def survey(self):
        found = scan(self._path, base.STRIDE)
        marks = tuple((base.STRIDE * i, (offset,)) for i, offset in enumerate(found.offsets))
        return Survey(_sha256("tsv", found.sha256), found.lines, marks)

    def read_range(self, first, last, survey):
        line, offsets = _mark_before(survey, first)
        texts = lines(self._path, line, *offsets)
        return itertools.islice(self._split(line, texts), first - line, last - line)

    def where(self, i):
        return f"{self._path} line {i + 1}"


class ToySource(Source):
    """The built-in English-German corpus, either way round."""

    def __init__(self, spec: str, split: str, count: int, seed: int, swapped: bool):
        super().__init__(spec, count)
        self._split, self._seed, self._swapped = split, seed, swapped

    def read(self):
        from t2t_flax.data.sources import toy

        for english, german in toy.pairs(self._split, self.count, seed=self._seed):
            yield (german, english) if self._swapped else (english, german)

    def fingerprint(self):
        from t2t_flax.data.sources import toy

        direction = "de-en" if self._swapped else "en-de"
        return _sha256("toy", toy.fingerprint(self._split, self.count, self._seed), direction)

    def where(self, i):
        return f"{self.spec} pair {i + 1}"


def open_source(
    spec: str, *, root: str = "", source_language: str, target_language: str, seed: int = 0, key: str = ""
) -> Source:
    """The corpus that `spec` names; `FORMS` lists the forms.

    root: folder from which relative paths start; for TFDS its data_dir. seed: of the built-in corpus.
    key: the config key that holds `spec`, for error messages. Raises UserError if it cannot be there.
    """
    label = f"{key} = {spec!r}" if key else repr(spec)
    languages = source_language, target_language
    kind = spec.partition(":")[0]
    if kind == "toy":
        return _open_toy(spec, languages, seed, label)
    if kind == "tfds":
        from t2t_flax.data.sources.tfds import TfdsSource

        return TfdsSource(spec, languages, data_dir=root, label=label)
    names = [name.strip() for name in spec.split(",")]
    if len(names) >= 2 and all(names):
        return TextSource(spec, *(_existing(name, root, label) for name in names))
    if len(names) == 1 and names[0].endswith((".tsv", ".tsv.gz")):
        return TsvSource(spec, _existing(names[0], root, label))
    raise UserError(f"{label} is not understood as a corpus; it can be {FORMS}")


def _existing(name: str, root: str, label: str) -> epath.Path:
    path = epath.Path(root or ".") / epath.Path(name).expanduser()
    if not path.exists():
        hint = "" if root or path.is_absolute() else f" (relative to {os.getcwd()}; config.data.root is empty)"
        raise UserError(f"{label}: there is no file {path}{hint}")
    if path.is_dir():
        raise UserError(f"{label}: {path} is a folder; name a file in it")
    check_rereadable(path, label)
    return path


def _open_toy(spec: str, languages: tuple[str, str], seed: int, label: str) -> ToySource:
    split, colon, count = spec.removeprefix("toy").removeprefix(":").partition(":")
    if split not in TOY_COUNTS:
        raise UserError(f"{label}: the built-in corpus has no split {split!r}; it has {', '.join(TOY_COUNTS)}")
    if colon and not (count.isdecimal() and int(count) > 0):
        raise UserError(f"{label}: expected toy:SPLIT or toy:SPLIT:COUNT with a COUNT of at least 1, not {count!r}")
    if set(languages) != {"en", "de"}:
        raise UserError(
            f"{label}: the built-in corpus is English and German, so config.data.source_language and config.data.target_language "
            f"must be en and de, in either order, not {languages[0]!r} and {languages[1]!r}"
        )
    return ToySource(spec, split, int(count or TOY_COUNTS[split]), seed, swapped=languages[0] == "de")


def _sha256(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _mark_before(survey: Survey, pair: int) -> tuple[int, tuple[int, ...]]:
    return max((mark for mark in survey.marks if mark[0] <= pair), default=(0, ()))
