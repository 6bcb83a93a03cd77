"""Tab-separated source: 'FILE.tsv' or 'tsv:FILE', perhaps with `columns`.

The file is plain or compressed.
"""

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.data.sources.files import open_files
from t2t_flax.data.sources.text import lines
from t2t_flax.errors import UserError
from t2t_flax.extensions.corpora.columns import SCORE, Columns, parse_columns

_PREFIX = "tsv"


class TsvSource(Source):
    """One file with a pair on each line.

    Args:
        columns: column numbers, from 1; None = source and target, and nothing else.
    """

    def __init__(self, spec: str, path: epath.Path, columns: Columns | None):
        super().__init__(spec, files=[path])
        self._path, self._columns = path, columns
        self.reasons = columns.reasons if columns else {}

    def read(self):
        columns = self._columns or Columns(("1", "2"))
        source, target = (int(name) - 1 for name in columns.texts)
        scored, most = (
            [int(limit.column) - 1 for limit in columns.limits],
            max(map(int, columns.names)),
        )
        for i, line in enumerate(lines(self._path)):
            fields = line.split("\t")
            if len(fields) < most:
                found = (
                    _count(len(fields), "column")
                    if self._columns
                    else _count(len(fields) - 1, "TAB")
                )
                raise UserError(f"{self.where(i)}: expected {self._expected()}, found {found}")
            if not self._columns and len(fields) > most:
                raise UserError(
                    f"{self.where(i)}: expected {self._expected()}, found"
                    f" {_count(len(fields) - 1, 'TAB')}. Name two columns as FILE:1,2"
                )
            if scored and not columns.keeps([fields[n] for n in scored], self.where, i):
                yield SCORE
            else:
                yield fields[source], fields[target]

    def _expected(self) -> str:
        return f"columns {', '.join(self._columns.names)}" if self._columns else "source TAB target"

    def fingerprint(self):
        return sha256_of(_PREFIX, str(self._columns), file_sha256(self._path))

    def where(self, i):
        return f"{self._path} line {i + 1}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def open_spec(spec: str, context: Context) -> Source:
    """Open the file, or all that match.

    Raises UserError if there is none, or for columns that are no numbers.
    """
    pattern, columns = parse_columns(spec.strip().removeprefix(f"{_PREFIX}:"), context)
    for name in columns.names if columns else ():
        if not (name.isdecimal() and int(name) > 0):
            raise UserError(
                f"{context.label}: {name!r} is not the number of a column; the first one is 1"
            )
    return open_files(spec, [pattern], context, lambda of, path: TsvSource(of, path, columns))
