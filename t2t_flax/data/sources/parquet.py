"""Parquet as a source: 'FILE.parquet' or 'parquet:PATTERN', a column of text for each language.

The columns are config.data.source_language and config.data.target_language. They may also be the fields of a column
"translation", as in Hugging Face's translation datasets.
"""

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from t2t_flax.data.sources.base import Context, Form, Source, has_prefix
from t2t_flax.data.sources.text import existing_file, file_sha256
from t2t_flax.errors import UserError, first_line
from t2t_flax.filesystem import is_remote, is_transient

_PREFIX = "parquet"
_NESTED = "translation"
_ROWS = 10_000
"""Rows read at a time."""


class ParquetSource(Source):
    """The rows of one or several files, in the order of their names."""

    def __init__(self, spec: str, paths: Sequence[epath.Path], languages: tuple[str, str]):
        self._paths, self._languages = tuple(paths), languages
        self._rows = [_metadata(path).num_rows for path in paths]
        super().__init__(spec, sum(self._rows))
        for path in paths:
            self._columns(path)

    def read(self):
        for path in self._paths:
            yield from self._read(path)

    def _read(self, path: epath.Path) -> Iterator[tuple[str, str]]:
        import pyarrow.parquet

        columns = self._columns(path)
        row = 0
        with path.open("rb") as file:
            batches = pyarrow.parquet.ParquetFile(file).iter_batches(_ROWS, columns=columns)
            while (batch := _next_batch(batches, path, row)) is not None:
                for item in batch.to_pylist():
                    item = item.get(_NESTED, item) or {}
                    texts = [item.get(language) for language in self._languages]
                    if not all(isinstance(text, str) for text in texts):
                        raise UserError(f"{path} row {row + 1}: expected a text for each language, found {texts}")
                    source, target = (text.replace("\r", " ").replace("\n", " ") for text in texts)
                    yield source, target
                    row += 1

    def _columns(self, path: epath.Path) -> list[str]:
        """The columns to read. Raises UserError if the file has neither form."""
        import pyarrow

        schema = _metadata(path).schema.to_arrow_schema()
        if all(language in schema.names for language in self._languages):
            return list(self._languages)
        nested = schema.field(_NESTED).type if _NESTED in schema.names else None
        fields = [field.name for field in nested] if nested is not None and pyarrow.types.is_struct(nested) else []
        if all(language in fields for language in self._languages):
            return [f"{_NESTED}.{language}" for language in self._languages]
        source, target = self._languages
        raise UserError(
            f"{path} has the columns {', '.join(schema.names)}: expected {source} and {target} (config.data.source_language and "
            f"config.data.target_language), or {_NESTED} with both"
        )

    def fingerprint(self):
        parts = [_PREFIX, *self._languages, *map(file_sha256, self._paths)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def where(self, i):
        for path, rows in zip(self._paths, self._rows, strict=True):
            if i < rows:
                return f"{path} row {i + 1}"
            i -= rows
        return f"{self._paths[-1]} row {self._rows[-1] + i + 1}"


def _next_batch(batches: Iterator[Any], path: epath.Path, row: int) -> Any:
    """The next batch, None at the end. Raises UserError for damaged data after `row` rows."""
    import pyarrow

    try:
        return next(batches, None)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and (error.errno is not None or is_transient(error)):
            raise
        message = first_line(error)
        raise UserError(f"{path}: damaged data after row {row} ({message}); download or copy the file again") from None


def _metadata(path: epath.Path) -> Any:
    import pyarrow.parquet

    try:
        with path.open("rb") as file:
            return pyarrow.parquet.read_metadata(file)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} is not a Parquet file: {first_line(error)}") from None


def _files(spec: str) -> list[str]:
    return [spec.removeprefix(f"{_PREFIX}:").strip()]


def _matches(spec: str) -> bool:
    return has_prefix(_PREFIX)(spec) or "," not in spec and spec.strip().endswith(".parquet")


def _open(spec: str, context: Context) -> ParquetSource:
    (pattern,) = _files(spec)
    names = [pattern]
    if glob.has_magic(pattern) and not is_remote(context.root or "."):
        names = sorted(glob.glob(os.path.expanduser(pattern), root_dir=context.root or "."))
        if not names:
            raise UserError(f"{context.label}: no file matches {pattern}")
    return ParquetSource(spec, [existing_file(name, context) for name in names], context.languages)


FORM = Form(
    "'FILE.parquet' or 'parquet:data/train-*.parquet' (a column for each language)",
    _matches,
    _open,
    _files,
)
