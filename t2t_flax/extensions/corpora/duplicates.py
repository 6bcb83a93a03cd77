"""Filter of repeated pairs, in bounded memory."""

import dataclasses
import hashlib
import itertools
import logging
import tempfile
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from t2t_flax.data.progress import Report, reported, silent
from t2t_flax.data.sources import PairOrReason, Source, sha256_of, total
from t2t_flax.extensions.corpora.rules import Rule

log = logging.getLogger("t2t_flax")
_PARTITIONS = 64
_IN_MEMORY = 1 << 21
"""Bytes of a partition kept in memory; a larger one becomes a temporary file."""
_BLOCK = 1 << 16
"""Pairs whose digests are divided at a time."""
_RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8")])


@dataclasses.dataclass(frozen=True)
class Duplicates(Rule):
    """Drop pairs that occurred before, in any part.

    Both sides must be equal character by character. Tags are ignored. The same pair in two
    directions, as names often are, is no duplicate.
    """

    reason: ClassVar[str] = "duplicate"
    shown: ClassVar[str] = "duplicates"

    def as_stored(self):
        return {"drop_duplicates": True}

    def rows(self, parts, rows, report):
        marks = self.marks(parts, report)
        return [_marked(*of_part, self.reason) for of_part in zip(rows, marks, strict=True)]

    def marks(self, parts: Sequence[Source], report: Report = silent) -> Sequence[np.ndarray]:
        """Return bool [rows] for each part: the rows to drop.

        Digests of the pairs are divided into partitions, which are temporary files if they are
        large. One partition at a time is sorted: 24 bytes of disk and 1 byte of memory a pair, plus
        some 200 MB. Two different pairs of n have the same digest of 128 bits with a probability of
        at most n^2 / 2^129: 1.5e-23 for 100 million.
        """
        corpus = sha256_of(*(f"{part.fingerprint()} {part.tag}" for part in parts))
        if corpus not in _marks:  # cached for the tokenizer's text, the store and `list_dropped`
            _marks.clear()
            _marks[corpus] = _find(parts, report)
        return _marks[corpus]


def _marked(
    pairs: Iterator[PairOrReason], marks: np.ndarray, reason: str
) -> Iterator[PairOrReason]:
    """Yield the pairs, with the reason in place of the marked ones."""
    return (
        reason if mark and not isinstance(pair, str) else pair
        for pair, mark in zip(pairs, marks, strict=True)
    )


_marks: dict[str, Sequence[np.ndarray]] = {}
"""Marks of the last corpus, by its content."""


def _find(parts: Sequence[Source], report: Report) -> Sequence[np.ndarray]:
    counts = []
    numbers = itertools.count()
    with Partitions() as partitions:
        for part in parts:
            log.info("looking for duplicates in %s", part.spec)
            rows = reported(
                part.rows(),
                numbers,
                "look for duplicates",
                report,
                lambda: total(p.count for p in parts),
            )
            counts.append(partitions.add(_digests(part, rows)))
        marked = np.zeros(sum(counts), bool)
        for records in partitions:
            marked[_repeated(records)] = True
    return np.split(marked, np.cumsum(counts)[:-1])


class Partitions:
    """Records of a corpus in row order, divided by digest into partitions.

    Iteration yields one partition at a time. As a context manager, it removes its files.
    """

    def __init__(self):
        self._files = [
            tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) for _ in range(_PARTITIONS)
        ]
        self._rows = 0

    def __enter__(self) -> "Partitions":
        return self

    def __exit__(self, *error) -> None:
        for file in self._files:
            file.close()

    def add(self, digests: Iterator[bytes]) -> int:
        """Take the digests of a part of the corpus and return its number of rows."""
        before, rows = self._rows, enumerate(digests, self._rows)
        while block := list(itertools.islice(rows, _BLOCK)):
            self._rows += len(block)
            digested = [(row, digest) for row, digest in block if digest]
            records = np.empty(len(digested), _RECORD)
            halves = np.frombuffer(b"".join(digest for _, digest in digested), "<u8").reshape(-1, 2)
            records["high"], records["low"] = halves[:, 0], halves[:, 1]
            records["row"] = [row for row, _ in digested]
            self._write(records)
        return self._rows - before

    def _write(self, records: np.ndarray) -> None:
        number = records["high"] % _PARTITIONS
        order = np.argsort(number, kind="stable")
        ends = np.searchsorted(number[order], np.arange(1, _PARTITIONS))
        for file, of_file in zip(self._files, np.split(records[order], ends), strict=True):
            file.write(of_file.tobytes())

    def __iter__(self) -> Iterator[np.ndarray]:
        for file in self._files:
            file.seek(0)
            yield np.frombuffer(file.read(), _RECORD)


def _digests(part: Source, rows: Iterator[PairOrReason]) -> Iterator[bytes]:
    """Yield 16 bytes for each row; none where the source drops a pair."""
    # Target-language symbol.
    language = [word for word in part.tag.split() if word.startswith("<2")]
    for row in rows:
        if isinstance(row, str):
            yield b""
            continue
        text = "\n".join([part.without_tag(row[0]), row[1], *language])  # each text is one line
        yield hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _repeated(records: np.ndarray) -> np.ndarray:
    """Return the rows of records whose digest occurs in an earlier one."""
    # A stable sort: rows stay in order.
    ordered = records[np.lexsort((records["low"], records["high"]))]
    same = (ordered["high"][1:] == ordered["high"][:-1]) & (
        ordered["low"][1:] == ordered["low"][:-1]
    )
    return ordered["row"][1:][same]
