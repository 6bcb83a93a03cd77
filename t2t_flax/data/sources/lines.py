"""Text files by lines: read from any place, and scanned once for what a sharing of them needs."""

import codecs
import dataclasses
import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator

import numpy as np
from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.filesystem import is_remote

_BLOCK = 1 << 20
_BOM = codecs.BOM_UTF8
_STRIPPED = b"\nbyte order mark stripped"
"""Ends the digest of a file that begins with one: its text is other than the same bytes gave before it was stripped."""


def lines(path: epath.Path, line: int = 0, offset: int = 0) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or .gz, without their ends; from `line`, which begins at byte `offset`.

    Only the byte 0x0A ends a line, so that no other character can move the two sides apart; one 0x0D before it goes, and
    a byte order mark at the beginning of the file. Raises UserError with the place where the file is not UTF-8 or
    not gzip.
    """
    number = line
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            file.seek(offset)
            for text in file:
                number += 1
                if number == 1:
                    text = text.removeprefix(_BOM)
                    if not text:
                        return
                yield text.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(
            f"{path} line {number}: byte 0x{byte:02x} at offset {error.start} of the line is not valid UTF-8 "
            f"({error.reason}); convert the file to UTF-8"
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip data after line {number} ({error}); get the file again") from None


def check_rereadable(path: epath.Path, label: str) -> None:
    """Raises UserError for a pipe or a device, whose text is gone after one reading."""
    if not is_remote(path) and not os.path.isfile(path):
        raise UserError(
            f"{label}: {path} is a pipe or a device, and a corpus is read more than once: save it to a file"
        )


@dataclasses.dataclass(frozen=True)
class Scan:
    """`file_sha256`, the number of lines, and the offsets of lines 0, stride, 2 * stride ... in its (unpacked) text."""

    sha256: str
    lines: int
    offsets: tuple[int, ...]


def scan(path: epath.Path, stride: int) -> Scan:
    """One pass over a file, plain or .gz, without decoding it. Raises UserError for damaged gzip data."""
    position, count, ended, offsets, digest, begin = 0, 0, True, [0], hashlib.sha256(), b""
    for block in _blocks(path):
        digest.update(block)
        begin = begin or block[: len(_BOM)]
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        offsets += [position + int(end) + 1 for end in ends[-(count + 1) % stride :: stride]]
        count += len(ends)
        position += len(block)
        ended = block.endswith(b"\n")
    if begin == _BOM:
        digest.update(_STRIPPED)
        ended = ended or position == len(_BOM)
    if ended and (
        offsets[-1] == position or position == len(begin) and begin == _BOM
    ):  # nothing begins behind the last end of a line
        offsets.pop()
    sha256 = file_sha256(path) if path.suffix == ".gz" else digest.hexdigest()
    return Scan(sha256, count + (not ended), tuple(offsets))


def file_sha256(path: epath.Path) -> str:
    """sha256 (hex) that identifies a text file's content: of its bytes, and of the fact that a byte order mark is stripped."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    if _begins_with_bom(path):
        digest.update(_STRIPPED)
    return digest.hexdigest()


def _begins_with_bom(path: epath.Path) -> bool:
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            return file.read(len(_BOM)) == _BOM
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return False  # `lines` says where it is damaged


def _blocks(path: epath.Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            while block := file.read(_BLOCK):
                yield block
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip data ({error}); get the file again") from None
