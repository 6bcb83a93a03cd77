"""Targets whose words are in reverse order."""

from t2t_flax.config import Config
from t2t_flax.data.hooks import DataHook
from t2t_flax.data.sources import Row, Source, sha256_of


def reverse_words(text: str) -> str:
    """The words of a line in reverse order."""
    return " ".join(reversed(text.split()))


class ReversedTargets(Source):
    """A source with the words of its targets in reverse order."""

    def __init__(self, source: Source):
        super().__init__(source.spec, source.count, files=source.files)
        self._source, self.reference_count = source, source.reference_count
        self.tag, self.reasons = source.tag, source.reasons

    def read(self):
        return map(self._reversed, self._source.read())

    def _reversed(self, row: Row) -> Row:
        return row if isinstance(row, str) else (row[0], *map(reverse_words, row[1:]))

    def fingerprint(self):
        return sha256_of(self._source.fingerprint(), "right to left")

    def expected_count(self):
        return self._source.expected_count()

    def where(self, i):
        return self._source.where(i)


class RightToLeft(DataHook):
    def transform(self, split, name, source):
        return ReversedTargets(source)


def hook(config: Config) -> RightToLeft:
    return RightToLeft()
