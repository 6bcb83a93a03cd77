"""A tab-separated file as a source: 'FILE.tsv', plain or compressed."""

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.data.sources.text import existing_file, lines
from t2t_flax.errors import UserError


class TsvSource(Source):
    """One file with source TAB target on each line."""

    pair_a_line = True

    def __init__(self, spec: str, path: epath.Path):
        super().__init__(spec, files=[path])
        self._path = path

    def read(self):
        for i, line in enumerate(lines(self._path)):
            sides = line.split("\t")
            if len(sides) != 2:
                raise UserError(f"{self.where(i)}: expected source TAB target, found {len(sides) - 1} TABs, not 1")
            yield sides[0], sides[1]

    def fingerprint(self):
        return sha256_of("tsv", file_sha256(self._path))

    def where(self, i):
        return f"{self._path} line {i + 1}"


def open_spec(spec: str, context: Context) -> TsvSource:
    """Opens the file. Raises UserError if it is missing or cannot be read twice."""
    return TsvSource(spec, existing_file(spec.strip(), context))


def files_of(spec: str) -> list[str]:
    """The file that a spec names."""
    return [spec.strip()]
