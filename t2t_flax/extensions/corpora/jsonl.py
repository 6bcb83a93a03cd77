"""JSON lines as a source: 'FILE.jsonl' or 'jsonl:FILE', an object on each line with a text for each language.

The keys are config.data.source_language and config.data.target_language: `{"en": "A house.", "de": "Ein Haus."}`. The
object may also lie under "translation", as in Hugging Face's translation datasets; other keys are ignored.
"""

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.data.sources.text import existing_file, lines
from t2t_flax.errors import UserError
from t2t_flax.json_file import parse_json

_PREFIX = "jsonl"


class JsonLinesSource(Source):
    """The pairs of one file, plain or compressed."""

    pair_a_line = True

    def __init__(self, spec: str, path: epath.Path, languages: tuple[str, str]):
        super().__init__(spec, files=[path])
        self._path, self._languages = path, languages

    def read(self):
        for i, line in enumerate(lines(self._path)):
            try:
                item = parse_json(line)
            except ValueError as error:
                raise UserError(f"{self.where(i)} is not JSON ({error}); each line must be one object") from None
            if isinstance(item, dict):
                item = item.get("translation", item)
            texts = [item.get(language) if isinstance(item, dict) else None for language in self._languages]
            if not all(isinstance(text, str) for text in texts):
                source, target = self._languages
                raise UserError(
                    f'{self.where(i)}: expected an object with texts under "{source}" and "{target}" '
                    "(config.data.source_language and config.data.target_language)"
                )
            yield tuple(texts)

    def fingerprint(self):
        parts = [_PREFIX, *self._languages, file_sha256(self._path)]
        return sha256_of(*parts)

    def where(self, i):
        return f"{self._path} line {i + 1}"


def files_of(spec: str) -> list[str]:
    """The files that a spec names."""
    return [spec.removeprefix(f"{_PREFIX}:").strip()]


def open_spec(spec: str, context: Context) -> JsonLinesSource:
    """Opens the corpus. Raises UserError if it cannot be read."""
    return JsonLinesSource(spec, existing_file(*files_of(spec), context), context.languages)
