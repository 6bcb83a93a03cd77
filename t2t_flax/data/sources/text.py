"""Text files as sources: 'SRC,TGT' with one sentence a line, plain or compressed (.gz, .bz2, .xz, .zst)."""

import bz2
import codecs
import contextlib
import glob
import gzip
import io
import itertools
import lzma
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import COMPRESSED, Context, Source, sha256_of
from t2t_flax.data.sources.files import existing_file
from t2t_flax.errors import UserError, require
from t2t_flax.filesystem import is_transient
from t2t_flax.registry import FILE_PATTERNS

_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
"""What reading damaged data raises; of .bz2 and .zst also an OSError without a number (`_is_damage`)."""


class TextSource(Source):
    """A file of source sentences and one or more of references; line i of each translates line i of the first."""

    pair_a_line = True

    def __init__(self, spec: str, source: epath.Path, *references: epath.Path):
        super().__init__(spec, files=[source, *references])

    @property
    def reference_count(self):  # type: ignore[override]
        return len(self.files) - 1

    def read(self):
        streams = [lines(path) for path in self.files]
        for i, line in enumerate(itertools.zip_longest(*streams)):
            if None in line:
                remaining = (
                    0 if text is None else 1 + sum(1 for _ in s) for text, s in zip(line, streams, strict=True)
                )
                raise self._unequal([i + count for count in remaining])
            yield line

    def fingerprint(self):
        return sha256_of("text", *map(file_sha256, self.files))

    def _unequal(self, counts: list[int]) -> UserError:
        (first, count), *others = zip(self.files, counts, strict=True)
        return UserError(
            f"{first} has {count} lines and {' and '.join(f'{path} has {n}' for path, n in others)}: "
            "line i of one must be the translation of line i of the other"
        )

    def where(self, i):
        return ", ".join(f"{path} line {i + 1}" for path in self.files)


def open_spec(spec: str, context: Context) -> Source:
    """Opens the files; of patterns, with an extension, those that match. Raises UserError if one is missing."""
    names = [name.strip() for name in spec.split(",")]
    if any(map(glob.has_magic, names)):
        for module in FILE_PATTERNS.load_all():
            return module.open_files(spec, names, context, TextSource)
    return TextSource(spec, *(existing_file(name, context) for name in names))


def lines(path: epath.Path) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or compressed, without line ends.

    Only the byte 0x0A ends a line, so that no other character can misalign the two sides. One 0x0D
    before it is removed, and a byte order mark at the beginning of the file. Raises UserError with the place where
    the file is not UTF-8 or its compressed data are damaged.
    """
    number = 0
    try:
        with _opened(path) as texts:
            for text in texts:
                number += 1
                if number == 1:
                    text = text.removeprefix(codecs.BOM_UTF8)
                    if not text:
                        return
                yield text.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(
            f"{path} line {number}: byte 0x{byte:02x} at offset {error.start} of the line is not valid UTF-8 "
            f"({error.reason}); convert the file to UTF-8"
        ) from None
    except Exception as error:
        if not _is_damage(error, path):
            raise
        raise UserError(
            f"{path}: damaged {path.suffix} data after line {number} ({error}); download or copy the file again"
        ) from None


@contextlib.contextmanager
def _opened(path: epath.Path) -> Iterator[Iterable[bytes]]:
    """The uncompressed lines of a file, streamed."""
    with path.open("rb") as raw:
        if path.suffix in COMPRESSED:  # gzip and zstd take no bytes for no text
            if not raw.read(1):
                raise EOFError("the file is empty")
            raw.seek(0)
        with _decompressed(raw, path.suffix) as file:
            yield file


def _decompressed(raw: IO[bytes], suffix: str) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if suffix == ".bz2":
        return bz2.open(raw)
    if suffix == ".xz":
        return lzma.open(raw)
    if suffix == ".zst":
        require("pyarrow", "arrow", "a .zst file")
        import pyarrow  # 0.1 s

        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd"))
    return raw


def _is_damage(error: Exception, path: epath.Path) -> bool:
    """Whether an error of reading is that of damaged data, not of the disk or the network."""
    if isinstance(error, _DAMAGED):
        return True
    unnumbered = isinstance(error, OSError) and error.errno is None
    return path.suffix in (".bz2", ".zst") and unnumbered and not is_transient(error)
