"""JSON-lines source: 'FILE.jsonl' or 'jsonl:FILE'.

Each line is an object with a text per language. The keys are config.data.source_language and
config.data.target_language: `{"en": "A house.", "de": "Ein Haus."}`; null is an empty side. The
object may also lie under "translation", as in Hugging Face's translation datasets. Other keys, or
ones within objects such as "text.en", are named as columns (`columns`).
"""

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.data.sources.files import open_files
from t2t_flax.data.sources.text import lines
from t2t_flax.errors import UserError
from t2t_flax.extensions.corpora.columns import SCORE, Columns, parse_columns, value_at
from t2t_flax.json_file import parse_json

_PREFIX = "jsonl"


class JsonLinesSource(Source):
    """Pairs of one file, plain or compressed.

    Args:
        columns: None = the languages.
    """

    def __init__(
        self, spec: str, path: epath.Path, languages: tuple[str, str], columns: Columns | None
    ):
        super().__init__(spec, files=[path])
        self._path, self._columns, self._named = (
            path,
            columns or Columns(languages),
            columns is not None,
        )
        self.reasons = self._columns.reasons

    def read(self):
        for i, line in enumerate(lines(self._path)):
            try:
                item = parse_json(line)
            except ValueError as error:
                raise UserError(
                    f"{self.where(i)} is not JSON ({error}); each line must be one object"
                ) from None
            if isinstance(item, dict) and not self._named:
                item = item.get("translation", item)
            found = [value_at(item, name, missing=0) for name in self._columns.texts]
            texts = ["" if text is None else text for text in found]
            if not all(isinstance(text, str) for text in texts):
                source, target = self._columns.texts
                keys = (
                    ""
                    if self._named
                    else " (config.data.source_language and config.data.target_language)"
                )
                raise UserError(
                    f'{self.where(i)}: expected an object with texts under "{source}" and'
                    f' "{target}"{keys}'
                )
            scores = [value_at(item, limit.column) for limit in self._columns.limits]
            yield tuple(texts) if self._columns.keeps(scores, self.where, i) else SCORE

    def fingerprint(self):
        return sha256_of(_PREFIX, str(self._columns), str(self._named), file_sha256(self._path))

    def where(self, i):
        return f"{self._path} line {i + 1}"


def open_spec(spec: str, context: Context) -> Source:
    """Open the file, or all that match. Raises UserError if there is none."""
    pattern, columns = parse_columns(spec.strip().removeprefix(f"{_PREFIX}:"), context)
    return open_files(
        spec,
        [pattern],
        context,
        lambda of, path: JsonLinesSource(of, path, context.languages, columns),
    )
