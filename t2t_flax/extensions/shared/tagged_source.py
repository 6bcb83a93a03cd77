"""Sources with a word before their source sentences."""

from t2t_flax.data.sources import DerivedSource, Row, Source


class TaggedSource(DerivedSource):
    """A source with a word before its source sentences, such as a control symbol."""

    def __init__(self, source: Source, tag: str):
        super().__init__(source)
        self._first, self.tag = tag, f"{tag} {source.tag}".strip()

    def read(self):
        return map(self._tagged, self.source.read())

    def _tagged(self, row: Row) -> Row:
        # A blank side stays blank, so that it is counted as such.
        if isinstance(row, str) or not row[0].strip():
            return row
        return f"{self._first} {row[0]}", *row[1:]

    def references(self):
        return self.source.references()

    def fingerprint(self):
        return self.source.fingerprint()
