"""Pairs of texts in Arrow tables, which Parquet files and saved datasets hold: a column for each language.

The columns are config.data.source_language and config.data.target_language. They may also be the fields of a column
"translation", as in Hugging Face's translation datasets.
"""

from collections.abc import Iterator
from typing import Any

from etils import epath

from t2t_flax.errors import UserError, first_line
from t2t_flax.filesystem import is_transient

ROWS = 10_000
"""Rows turned into Python objects at a time."""
_NESTED = "translation"


def text_columns(schema: Any, languages: tuple[str, str], path: epath.Path) -> list[str]:
    """The columns to read of a `pyarrow.Schema`. Raises UserError if it has neither form."""
    import pyarrow

    if all(language in schema.names for language in languages):
        return list(languages)
    nested = schema.field(_NESTED).type if _NESTED in schema.names else None
    fields = [field.name for field in nested] if nested is not None and pyarrow.types.is_struct(nested) else []
    if all(language in fields for language in languages):
        return [f"{_NESTED}.{language}" for language in languages]
    source, target = languages
    raise UserError(
        f"{path} has the columns {', '.join(schema.names)}: expected {source} and {target} (config.data.source_language and "
        f"config.data.target_language), or {_NESTED} with both"
    )


def read_pairs(batches: Iterator[Any], languages: tuple[str, str], path: epath.Path) -> Iterator[tuple[str, ...]]:
    """The pairs of a file's record batches, which have the columns of `text_columns`. Raises UserError for damaged data and for
    a row without both texts.
    """
    row = 0
    while (batch := _next_batch(batches, path, row)) is not None:
        for start in range(0, batch.num_rows, ROWS):
            for item in batch.slice(start, ROWS).to_pylist():
                item = item.get(_NESTED, item) or {}
                texts = [item.get(language) for language in languages]
                if not all(isinstance(text, str) for text in texts):
                    raise UserError(f"{path} row {row + 1}: expected a text for each language, found {texts}")
                yield tuple(texts)
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
