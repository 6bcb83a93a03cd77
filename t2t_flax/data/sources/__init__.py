"""Data sources: sentence pairs in a fixed order, streamed.

The sources are text files, the built-in corpus, and the forms that extensions add to
`registry.SOURCES`.
"""

import abc
import collections
import dataclasses
import hashlib
import importlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Generic, TypeVar

import numpy as np
from etils import epath

from t2t_flax.data.compression import SUFFIXES
from t2t_flax.data.hashing import key_of, mix
from t2t_flax.errors import UserError
from t2t_flax.registry import SOURCES, load_extensions

_FILE = re.compile(r"(?:\w+://)?[^:]*")
_UNSEEN = ("Zs", "Zl", "Zp", "Cc", "Cf")
_BLOCK = 4096
"""Number of pairs drawn at a time."""
Item = TypeVar("Item")
Row = tuple[str, ...] | str
"""Source, target and further references of a pair, or the reason for dropping it."""
PairOrReason = tuple[str, str] | str
"""Source and target of a pair, or the reason for dropping it."""


class Source(abc.ABC):
    """Corpus of (source, target) sentences in a fixed order."""

    reference_count = 1
    """Number of target sides of each sentence. Training and its losses use the first."""
    tag = ""
    """Words before each source sentence that is not blank, followed by a space.

    The fingerprint does not depend on them.
    """
    reasons: Mapping[str, str] = {}
    """Reasons for dropping pairs.

    The values show them after a number: "with a low score".
    """

    def __init__(self, spec: str, count: int | None = None, *, files: Iterable[epath.Path] = ()):
        self.spec = spec
        self.files = tuple(files)
        """Files whose content the fingerprint covers."""
        self.count = count
        """Number of pairs, dropped ones too; None until it is known.

        A text file is counted by its first full reading.
        """

    @abc.abstractmethod
    def read(self) -> Iterator[Row]:
        """Yield the sentences as they are stored, in order.

        A row has source, target and further references, or is one of `reasons`. The stream may be
        empty. Raises UserError with the location.
        """

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Return the sha256 (hex) of the content, wherever it is stored."""

    def where(self, i: int) -> str:
        """Return the location of pair i for error messages: 'train.en line 17'.

        Pairs are numbered from 0, dropped ones counted.
        """
        return f"{self.spec} pair {i + 1}"

    def rows(self) -> Iterator[PairOrReason]:
        """Yield the pairs in order, each text on one line; dropped ones as a reason.

        The reason is one of `reasons`. The target is the first reference with text. Memory is
        constant, and each call starts over. Raises UserError if there are no pairs.
        """
        count = 0
        for row in self.read():
            count += 1
            yield (
                row
                if isinstance(row, str)
                else (one_line(row[0]), one_line(next(filter(has_text, row[1:]), row[1])))
            )
        if not count:
            raise UserError(
                f"{self.spec}: the corpus is empty (0 sentence pairs); at least one pair is needed"
            )
        self.count = count

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs of `rows` that the source does not drop.

        Raises UserError if there are none.
        """
        dropped, kept = collections.Counter[str](), False
        for row in self.rows():
            if isinstance(row, str):
                dropped[row] += 1
            else:
                kept = True
                yield row
        if not kept:
            raise UserError(
                f"{self.spec}: no pair is left of {dropped.total():,}:"
                f" {counted(dropped, self.reasons)}"
            )

    def sample(self, count: int) -> list[tuple[str, str]]:
        """Return at most `count` pairs, drawn uniformly by their positions, in order."""
        return draw_pairs(self.pairs(), count).pairs

    def without_tag(self, text: str) -> str:
        """Return a source sentence without the source's tag."""
        return text.removeprefix(f"{self.tag} ") if self.tag else text

    @property
    def parts(self) -> tuple["Source", ...]:
        """Sources of a `JoinedSource`, in order; otherwise this one."""
        return (self,)

    def references(self) -> Iterator[tuple[str, ...]]:
        """Return all target sides of each pair, in order."""
        return (tuple(map(one_line, row[1:])) for row in self.read() if not isinstance(row, str))


class DerivedSource(Source):
    """Rows of another source, some or all of them, perhaps changed.

    Messages and other references to a row name its place in the files.
    """

    def __init__(self, source: Source):
        super().__init__(source.spec, source.count, files=source.files)
        self.source, self.reference_count = source, source.reference_count
        self.tag, self.reasons = source.tag, source.reasons

    def where(self, i):
        return self.source.where(i)


class ScoredPairs(DerivedSource):
    """Pairs of a validation or test set that can be scored.

    The other pairs have no text on one side.
    """

    def __init__(self, source: Source):
        super().__init__(source)
        self.reasons = {
            "without_source": "without a source",
            "without_reference": "without a reference",
        }

    def read(self):
        return map(self._checked, self.source.read())

    def _checked(self, row: Row) -> Row:
        if not has_text(row[0]):
            return "without_source"
        return row if any(map(has_text, row[1:])) else "without_reference"

    def fingerprint(self):
        return self.source.fingerprint()


class JoinedSource(Source):
    """All pairs of several sources, one source after the other."""

    def __init__(self, spec: str, parts: Sequence[Source]):
        self.spec, self._parts = spec, tuple(parts)
        self.files = tuple(file for part in parts for file in part.files)

    @property
    def parts(self):
        return self._parts

    @property
    def count(self):  # type: ignore[override]
        """Sum of the parts' counts; None until all are known."""
        return total(part.count for part in self._parts)

    @property
    def reasons(self):  # type: ignore[override]
        return {reason: shown for part in self._parts for reason, shown in part.reasons.items()}

    def read(self):
        return itertools.chain.from_iterable(
            part.rows() for part in self._parts
        )  # none may be empty

    def rows(self):
        return self.read()

    def fingerprint(self):
        return sha256_of(*(part.fingerprint() for part in self._parts))


def counted(counts: Mapping[str, int], shown: Mapping[str, str]) -> str:
    """Return the counts above 0 as text: "3 duplicates, 1,000 with equal sides"."""
    return ", ".join(f"{counts[name]:,} {text}" for name, text in shown.items() if counts.get(name))


def total(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None if a count is not known."""
    known = [*counts]
    return None if None in known else sum(filter(None, known))


@dataclasses.dataclass(frozen=True)
class Context:
    """Arguments of a source's `open_spec` other than the spec.

    Attributes:
        root: folder of relative paths.
        languages: (source, target).
        label: spec with its config key, for error messages.
    """

    root: str
    languages: tuple[str, str]
    label: str


@dataclasses.dataclass
class Drawn(Generic[Item]):
    """Pairs drawn at random, in order.

    Attributes:
        seen: number of pairs to draw from.
        pairs: the drawn pairs.
        draws: random number of each drawn pair. The pairs with the smallest numbers are drawn.
    """

    seen: int
    pairs: list[Item]
    draws: list[int]

    def cut(self, count: int) -> None:
        """Keep at most `count` of the pairs, drawn uniformly."""
        smallest = np.argsort(np.array(self.draws, np.uint64), kind="stable")[:count]
        kept = np.sort(smallest).tolist()
        self.pairs, self.draws = [self.pairs[i] for i in kept], [self.draws[i] for i in kept]


def draw_pairs(pairs: Iterable[Item], count: int, key: int = 0) -> Drawn[Item]:
    """Draw at most `count` pairs uniformly, by a hash of each position and `key`.

    Holds at most twice as many pairs, and a block.
    """
    drawn, highest, rest = Drawn[Item](0, [], []), np.uint64((1 << 64) - 1), iter(pairs)
    while block := [*itertools.islice(rest, _BLOCK)]:
        positions = np.arange(drawn.seen, drawn.seen + len(block), dtype=np.uint64)
        draws = mix(positions ^ np.uint64(key_of(key)))
        near = np.flatnonzero(draws <= highest)
        drawn.seen += len(block)
        drawn.pairs += [block[i] for i in near.tolist()]
        drawn.draws += draws[near].tolist()
        if len(drawn.pairs) >= 2 * count:
            drawn.cut(count)
            highest = np.uint64(max(drawn.draws))
    drawn.cut(count)
    return drawn


def sha256_of(*parts: str) -> str:
    """Return the sha256 of the parts, one a line, in hex."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def has_text(text: str) -> bool:
    """Return whether a text has more than spaces, control and format characters."""
    return any(unicodedata.category(character) not in _UNSEEN for character in text)


def one_line(text: str) -> str:
    """Return the text with a space for each line end.

    A sentence is one line of the files that are translated and scored.
    """
    return text.replace("\r", " ").replace("\n", " ")


def open_source(
    spec: str, *, root: str = "", source_language: str, target_language: str, key: str = ""
) -> Source:
    """Return the source that `spec` names.

    `spec` has one of the forms of `registry.SOURCES`, or names text files. Raises UserError for an
    unknown form and for a source that does not exist.

    Args:
        root: folder of relative paths.
        key: config key that holds `spec`, for error messages.
    """
    label = f"{key} = {spec!r}" if key else repr(spec)
    module = _module_of(spec)
    if module is None:
        forms = ", ".join(form.shown for form in SOURCES.values())
        convert = " docs/data.md has a script that converts a .tmx file." if ".tmx" in spec else ""
        raise UserError(f"{label} has no known form.{convert} Known forms: {forms}")
    return module.open_spec(spec, Context(root, (source_language, target_language), label))


def _module_of(spec: str) -> ModuleType | None:
    """Return the module for the form of a spec; None if it has no known form."""
    load_extensions()
    name = _uncompressed(file_part(spec))
    for form in SOURCES.values():
        if (
            form.prefix
            and _prefix(spec) == form.prefix
            or "," not in name
            and name.endswith(form.suffixes or ("\0",))
        ):
            return importlib.import_module(form.module)
    several = len(names := spec.split(",")) > 1 and all(map(str.strip, names))
    return importlib.import_module(SOURCES["text"].module) if several else None


def _uncompressed(spec: str) -> str:
    name = spec.strip()
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def file_part(spec: str) -> str:
    """Return the files of a spec.

    They stand before the colon that begins columns, if there is one.
    """
    return _FILE.match(spec.strip())[0]  # type: ignore[index]  # it matches every text


def _prefix(spec: str) -> str:
    return spec.partition(":")[0].strip()
