"""Compressed text files: .gz, .xz and .zst. Cut-off files are errors, never shorter ones."""

import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import IO

from etils import epath

from t2t_flax.errors import require
from t2t_flax.filesystem import is_transient

SUFFIXES = (".gz", ".xz", ".zst")
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
"""What reading damaged data raises; of .zst an OSError without a number (`is_damage`)."""


def without_suffix(name: str) -> str:
    """The name of the file without the suffix of its compression: 'train.tsv.gz' -> 'train.tsv'."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


@contextlib.contextmanager
def opened(path: epath.Path) -> Iterator[IO[bytes]]:
    """The uncompressed bytes of a file, streamed."""
    with path.open("rb") as raw, _decompressed(raw, path.suffix) as file:
        yield file


def _decompressed(raw: IO[bytes], suffix: str) -> IO[bytes]:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if suffix == ".xz":
        return lzma.open(raw)
    if suffix == ".zst":
        require("pyarrow", "arrow", "a .zst file")
        import pyarrow  # 0.1 s

        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd"))
    return raw


def is_damage(error: Exception, path: epath.Path) -> bool:
    """Whether an error of reading is that of damaged data, not of the disk or the network."""
    if path.suffix == ".zst":
        return isinstance(error, OSError) and error.errno is None and not is_transient(error)
    return isinstance(error, DAMAGED)
