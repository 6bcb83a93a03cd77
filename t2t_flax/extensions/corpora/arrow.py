"""Pairs of texts in Arrow tables, with a column for each language.

Parquet files and saved datasets hold such tables. The columns are config.data.source_language and
config.data.target_language. They may also be the fields of a column "translation", as in Hugging
Face's translation datasets.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from etils import epath

from t2t_flax.data.sources import Row
from t2t_flax.errors import UserError, first_line
from t2t_flax.extensions.corpora.columns import SCORE, Columns, Limit, value_at
from t2t_flax.files import is_transient

ROWS = 10_000
"""Rows turned into Python objects at a time."""
_NESTED = "translation"


def language_columns(schema: Any, languages: tuple[str, str], path: epath.Path) -> Columns:
    """Return the language columns of a `pyarrow.Schema`.

    Raises UserError if it has neither form.
    """
    source, target = languages
    for columns in (
        Columns((source, target)),
        Columns((f"{_NESTED}.{source}", f"{_NESTED}.{target}")),
    ):
        if all(_type(schema, name) for name in columns.names):
            return columns
    raise UserError(
        f"{path} has the columns {', '.join(schema.names)}: expected {source} and {target}"
        f" (config.data.source_language and config.data.target_language), or {_NESTED} with both"
    )


def of_schema(schema: Any, columns: Columns, path: epath.Path) -> Columns:
    """Return the columns with limits rounded to the precision of their column.

    0.7 is stored as 0.69999999 in 32 bits. Raises UserError for a column that the `pyarrow.Schema`
    lacks.
    """
    for name in columns.names:
        if not _type(schema, name):
            raise UserError(
                f"{path} has the columns {', '.join(schema.names)}, and no column {name}"
            )
    limits = [_rounded(limit, _type(schema, limit.column)) for limit in columns.limits]
    return dataclasses.replace(columns, limits=tuple(limits))


def _rounded(limit: Limit, of: Any) -> Limit:
    import pyarrow

    if not (pyarrow.types.is_float16(of) or pyarrow.types.is_float32(of)):
        return limit
    with np.errstate(over="ignore"):
        least, most = np.array(limit[1:], of.to_pandas_dtype()).tolist()
    return Limit(limit.column, least, most)


def _type(fields: Any, name: str) -> Any:
    """Return the type of the field `name` in a schema or a struct, or None.

    The name may also be a path of parts separated by dots.
    """
    import pyarrow

    by_name = {field.name: field.type for field in fields}
    first, dot, rest = name.partition(".")
    if name in by_name or not dot:
        return by_name.get(name)
    return (
        _type(by_name[first], rest)
        if first in by_name and pyarrow.types.is_struct(by_name[first])
        else None
    )


def read_pairs(batches: Iterator[Any], columns: Columns, path: epath.Path) -> Iterator[Row]:
    """Yield the pairs of a file's record batches.

    Raises UserError for damaged data, and for a row without a score or with a value that is no
    text.
    """
    row, where = 0, lambda i: f"{path} row {i + 1}"
    while (batch := _next_batch(batches, path, row)) is not None:
        for start in range(0, batch.num_rows, ROWS):
            for item in batch.slice(start, ROWS).to_pylist():
                found = [value_at(item, name) for name in columns.texts]
                texts = ["" if text is None else text for text in found]  # null is an empty side
                if not all(isinstance(text, str) for text in texts):
                    raise UserError(
                        f"{where(row)}: expected a text for each language, found {texts}"
                    )
                scores = [value_at(item, limit.column) for limit in columns.limits]
                yield tuple(texts) if columns.keeps(scores, where, row) else SCORE
                row += 1


def is_damage(error: Exception) -> bool:
    """Return True if an error of pyarrow means damaged data.

    Disk and network failures do not count. A damaged size asks for too much memory.
    """
    return not isinstance(error, OSError) or error.errno is None and not is_transient(error)


def _next_batch(batches: Iterator[Any], path: epath.Path, row: int) -> Any:
    """Return the next batch, None at the end.

    Raises UserError for damaged data after `row` rows.
    """
    import pyarrow

    try:
        batch = next(batches, None)
        if batch is not None:
            # Invalid UTF-8, and text outside its buffer, which pyarrow would read.
            batch.validate(full=True)
        return batch
    except (pyarrow.ArrowException, OSError, MemoryError) as error:
        if not is_damage(error):
            raise
        message = first_line(error)
        raise UserError(
            f"{path}: damaged data after row {row} ({message}); download or copy the file again"
        ) from None
