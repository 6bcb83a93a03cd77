"""Sources with a word before their source sentences."""

from t2t_flax.data.sources import Row, Source


class TaggedSource(Source):
    """A source with a word before its source sentences, such as a control symbol of the tokenizer."""

    def __init__(self, source: Source, tag: str):
        super().__init__(source.spec, source.count, files=source.files)
        self._source, self._first, self.reference_count = source, tag, source.reference_count
        self.tag, self.reasons = f"{tag} {source.tag}".strip(), source.reasons

    def read(self):
        return map(self._tagged, self._source.read())

    def _tagged(self, row: Row) -> Row:
        if isinstance(row, str) or not row[0].strip():  # a blank side stays blank, so that it is counted as such
            return row
        return f"{self._first} {row[0]}", *row[1:]

    def references(self):
        return self._source.references()

    def fingerprint(self):
        return self._source.fingerprint()

    def expected_count(self):
        return self._source.expected_count()

    def where(self, i):
        return self._source.where(i)
