"""Pairs of texts in Arrow tables, which Parquet files and saved datasets hold: a column for each language.

The columns are config.data.source_language and config.data.target_language. They may also be the fields of a column
"translation", as in Hugging Face's translation datasets.
"""

from collections.abc import Iterator
from typing import Any

from etils import epath

from t2t_flax.data.sources import Row
from t2t_flax.errors import UserError, first_line
from t2t_flax.extensions.corpora.columns import SCORE, Columns, value_at
from t2t_flax.filesystem import is_transient

ROWS = 10_000
"""Rows turned into Python objects at a time."""
_NESTED = "translation"


def language_columns(schema: Any, languages: tuple[str, str], path: epath.Path) -> Columns:
    """The columns of the languages in a `pyarrow.Schema`. Raises UserError if it has neither form."""
    source, target = languages
    for columns in (Columns((source, target)), Columns((f"{_NESTED}.{source}", f"{_NESTED}.{target}"))):
        if all(_has(schema, name) for name in columns.names):
            return columns
    raise UserError(
        f"{path} has the columns {', '.join(schema.names)}: expected {source} and {target} (config.data.source_language and "
        f"config.data.target_language), or {_NESTED} with both"
    )


def check_columns(schema: Any, columns: Columns, path: epath.Path) -> None:
    """Raises UserError for a column that a `pyarrow.Schema` lacks."""
    for name in columns.names:
        if not _has(schema, name):
            raise UserError(f"{path} has the columns {', '.join(schema.names)}, and no column {name}")


def _has(fields: Any, name: str) -> bool:
    """Whether a schema or a struct has a field of this name, or fields that its parts lead to."""
    import pyarrow

    by_name = {field.name: field.type for field in fields}
    first, dot, rest = name.partition(".")
    if name in by_name or not dot:
        return name in by_name
    return first in by_name and pyarrow.types.is_struct(by_name[first]) and _has(by_name[first], rest)


def read_pairs(batches: Iterator[Any], columns: Columns, path: epath.Path) -> Iterator[Row]:
    """The pairs of a file's record batches. Raises UserError for damaged data, and for a row without both texts or a score."""
    row, where = 0, lambda i: f"{path} row {i + 1}"
    while (batch := _next_batch(batches, path, row)) is not None:
        for start in range(0, batch.num_rows, ROWS):
            for item in batch.slice(start, ROWS).to_pylist():
                texts = [value_at(item, name) for name in columns.texts]
                if not all(isinstance(text, str) for text in texts):
                    raise UserError(f"{where(row)}: expected a text for each language, found {texts}")
                scores = [value_at(item, limit.column) for limit in columns.limits]
                yield tuple(texts) if columns.keeps(scores, where, row) else SCORE
                row += 1


def is_damage(error: Exception) -> bool:
    """Whether an error of pyarrow is that of damaged data, not of the disk or the network. A damaged size asks for too much
    memory.
    """
    return not isinstance(error, OSError) or error.errno is None and not is_transient(error)


def _next_batch(batches: Iterator[Any], path: epath.Path, row: int) -> Any:
    """The next batch, None at the end. Raises UserError for damaged data after `row` rows."""
    import pyarrow

    try:
        batch = next(batches, None)
        if batch is not None:
            batch.validate(full=True)  # invalid UTF-8, and text outside its buffer, which pyarrow would read
        return batch
    except (pyarrow.ArrowException, OSError, MemoryError) as error:
        if not is_damage(error):
            raise
        message = first_line(error)
        raise UserError(f"{path}: damaged data after row {row} ({message}); download or copy the file again") from None
