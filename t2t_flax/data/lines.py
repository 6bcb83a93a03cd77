"""Text files by lines: read from any place, and scanned once for what a sharing of them needs."""

import dataclasses
import gzip
import hashlib
import zlib
from collections.abc import Iterator

import numpy as np
from etils import epath

from t2t_flax.errors import UserError

_BLOCK = 1 << 20


def lines(path: epath.Path, line: int = 0, offset: int = 0) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or .gz, without their ends; from `line`, which begins at byte `offset`.

    Only the byte 0x0A ends a line, so that no other character can move the two sides apart; one 0x0D before it goes.
    Raises UserError with the place where the file is not UTF-8 or not gzip.
    """
    number = line
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            file.seek(offset)
            for text in file:
                number += 1
                yield text.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(
            f"{path} line {number}: byte 0x{byte:02x} at offset {error.start} of the line is not valid UTF-8 "
            f"({error.reason}); convert the file to UTF-8"
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip data after line {number} ({error}); get the file again") from None


@dataclasses.dataclass(frozen=True)
class Scan:
    """sha256 of a file's bytes, its lines, and the offsets of lines 0, stride, 2 * stride ... in its (unpacked) text."""

    sha256: str
    lines: int
    offsets: tuple[int, ...]


def scan(path: epath.Path, stride: int) -> Scan:
    """One pass over a file, plain or .gz, without decoding it. Raises UserError for damaged gzip data."""
    position, count, ended, offsets, digest = 0, 0, True, [0], hashlib.sha256()
    for block in _blocks(path):
        digest.update(block)
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        offsets += [position + int(end) + 1 for end in ends[-(count + 1) % stride :: stride]]
        count += len(ends)
        position += len(block)
        ended = block.endswith(b"\n")
    if offsets[-1] == position and ended:  # nothing begins behind the last end of a line
        offsets.pop()
    sha256 = file_sha256(path) if path.suffix == ".gz" else digest.hexdigest()
    return Scan(sha256, count + (not ended), tuple(offsets))


def file_sha256(path: epath.Path) -> str:
    """sha256 (hex) of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _blocks(path: epath.Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            while block := file.read(_BLOCK):
                yield block
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip data ({error}); get the file again") from None
