"""Parquet source: 'FILE.parquet' or 'parquet:PATTERN'.

It reads the columns of the languages, or others (`columns`).
"""

from typing import Any

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.data.sources.files import open_files
from t2t_flax.errors import UserError, first_line, require
from t2t_flax.extensions.corpora.arrow import ROWS, language_columns, of_schema, read_pairs
from t2t_flax.extensions.corpora.columns import Columns, parse_columns

_PREFIX = "parquet"


class ParquetSource(Source):
    """Rows of one file.

    Args:
        columns: None = the columns of the languages.
    """

    def __init__(
        self, spec: str, path: epath.Path, languages: tuple[str, str], columns: Columns | None
    ):
        metadata = _metadata(path)
        super().__init__(spec, metadata.num_rows, files=[path])
        schema = metadata.schema.to_arrow_schema()
        self._path = path
        self._columns = of_schema(
            schema, columns or language_columns(schema, languages, path), path
        )
        self.reasons = self._columns.reasons

    def read(self):
        import pyarrow.parquet

        with self._path.open("rb") as file:
            batches = pyarrow.parquet.ParquetFile(file).iter_batches(
                ROWS, columns=self._columns.names
            )
            yield from read_pairs(batches, self._columns, self._path)

    def fingerprint(self):
        return sha256_of(_PREFIX, str(self._columns), file_sha256(self._path))

    def where(self, i):
        return f"{self._path} row {i + 1}"


def _metadata(path: epath.Path) -> Any:
    import pyarrow.parquet

    try:
        with path.open("rb") as file:
            return pyarrow.parquet.read_metadata(file)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} is not a Parquet file: {first_line(error)}") from None


def open_spec(spec: str, context: Context) -> Source:
    """Open the file, or all that match.

    Raises UserError if there is none or a column is missing.
    """
    require("pyarrow", "arrow", context.label)
    pattern, columns = parse_columns(spec.strip().removeprefix(f"{_PREFIX}:"), context)
    return open_files(
        spec,
        [pattern],
        context,
        lambda of, path: ParquetSource(of, path, context.languages, columns),
    )
