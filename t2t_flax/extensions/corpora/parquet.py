"""Parquet as a source: 'FILE.parquet' or 'parquet:PATTERN', with the columns of `columns.text_columns`."""

import glob
import os
from collections.abc import Sequence
from typing import Any

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.data.sources.text import existing_file
from t2t_flax.errors import UserError, first_line, require
from t2t_flax.extensions.corpora.columns import ROWS, read_pairs, text_columns
from t2t_flax.filesystem import is_remote

_PREFIX = "parquet"


class ParquetSource(Source):
    """The rows of one or several files, in the order of their names."""

    def __init__(self, spec: str, paths: Sequence[epath.Path], languages: tuple[str, str]):
        self._paths, self._languages = tuple(paths), languages
        self._rows = [_metadata(path).num_rows for path in paths]
        super().__init__(spec, sum(self._rows), files=self._paths)
        for path in paths:
            self._columns(path)

    def read(self):
        import pyarrow.parquet

        for path in self._paths:
            with path.open("rb") as file:
                batches = pyarrow.parquet.ParquetFile(file).iter_batches(ROWS, columns=self._columns(path))
                yield from read_pairs(batches, self._languages, path)

    def _columns(self, path: epath.Path) -> list[str]:
        return text_columns(_metadata(path).schema.to_arrow_schema(), self._languages, path)

    def fingerprint(self):
        parts = [_PREFIX, *self._languages, *map(file_sha256, self._paths)]
        return sha256_of(*parts)

    def where(self, i):
        for path, rows in zip(self._paths, self._rows, strict=True):
            if i < rows:
                return f"{path} row {i + 1}"
            i -= rows
        return f"{self._paths[-1]} row {self._rows[-1] + i + 1}"


def _metadata(path: epath.Path) -> Any:
    import pyarrow.parquet

    try:
        with path.open("rb") as file:
            return pyarrow.parquet.read_metadata(file)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} is not a Parquet file: {first_line(error)}") from None


def files_of(spec: str) -> list[str]:
    """The files that a spec names."""
    return [spec.removeprefix(f"{_PREFIX}:").strip()]


def open_spec(spec: str, context: Context) -> ParquetSource:
    """Opens the corpus. Raises UserError if it cannot be read."""
    require("pyarrow", "arrow", context.label)
    (pattern,) = files_of(spec)
    names = [pattern]
    if glob.has_magic(pattern) and not is_remote(context.root or "."):
        names = sorted(glob.glob(os.path.expanduser(pattern), root_dir=context.root or "."))
        if not names:
            raise UserError(f"{context.label}: no file matches {pattern}")
    return ParquetSource(spec, [existing_file(name, context) for name in names], context.languages)
