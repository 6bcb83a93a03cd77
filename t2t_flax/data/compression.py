"""Compressed files, recognised by their first bytes."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from typing import IO, Any

from t2t_flax.errors import require
from t2t_flax.files import is_transient

FORMS = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    ".xz": re.compile(rb"\xfd7zXZ\0"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2aM\x18"),
}
"""Patterns of the first bytes of each form of compression, by suffix."""
SUFFIXES = tuple(FORMS)
HEAD = 10
"""Number of first bytes that tell the form."""
_BLOCK = 1 << 16
_Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1f\x7f]")
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
"""Errors of damaged data.

.bz2 and .zst also raise an OSError without a number (`is_damage`).
"""


def form_of(head: bytes, suffix: str = "") -> str:
    """Return a file's form of compression, as a suffix; "" for none.

    Args:
        head: first bytes of the file.
        suffix: suffix of the file's name. If it is one of a form, and the file begins neither as
            any form nor as text, the file is damaged data in that form.
    """
    damaged = suffix if suffix in FORMS and (not head or _CONTROL.search(head)) else ""
    return next((form for form, first in FORMS.items() if first.match(head)), damaged)


def decompressed(raw: IO[bytes], form: str) -> IO[bytes] | io.BufferedIOBase:
    """Return a stream of the uncompressed bytes of an open file."""
    if form == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if form in (".bz2", ".xz"):
        make = bz2.BZ2Decompressor if form == ".bz2" else lzma.LZMADecompressor
        return io.BufferedReader(_Blocks(_blocks(raw, make)), _BLOCK)
    if form == ".zst":
        require("pyarrow", "arrow", "a .zst file")
        import pyarrow  # takes 0.1 s

        return io.BufferedReader(
            pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd")
        )
    return raw


def _blocks(raw: IO[bytes], make: type[_Decompressor]) -> Iterator[bytes]:
    """Yield the uncompressed bytes of one or more streams.

    bz2.open and lzma.open ignore unknown bytes after a stream. This function raises an error of
    damaged data there: damage near the start of a later stream would drop the rest of the file.
    """
    stream = make()
    while data := raw.read(_BLOCK):
        while data:
            if stream.eof:
                if not (data := data.lstrip(b"\0")):  # padding
                    break
                stream = make()
            yield stream.decompress(data, _BLOCK)
            while not (stream.eof or stream.needs_input):
                yield stream.decompress(b"", _BLOCK)
            data = stream.unused_data
    if not stream.eof:
        raise EOFError("it ends within a stream")


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a file."""

    def __init__(self, blocks: Iterator[bytes]):
        self._blocks, self._rest = filter(None, blocks), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._rest or next(self._blocks, b"")
        count = min(len(block), len(buffer))
        buffer[:count], self._rest = block[:count], block[count:]
        return count


def is_damage(error: Exception, form: str) -> bool:
    """Return whether damaged data made a read fail, not the disk or the network."""
    if isinstance(error, _DAMAGED):
        return True
    unnumbered = isinstance(error, OSError) and error.errno is None
    return form in (".bz2", ".zst") and unnumbered and not is_transient(error)
