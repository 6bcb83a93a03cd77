"""Part of a source, with a tag before its source sentences."""

import itertools

from t2t_flax.data.sources.base import Source, sha256_of


class Part(Source):
    """The first `limit` pairs of a source (0 = all), with `tag` before each source sentence: as text with a space or, after
    control symbols, as another one of them, on which the fingerprint does not depend.
    """

    def __init__(self, source: Source, *, tag: str = "", limit: int = 0):
        super().__init__(source.spec, source.count and min(source.count, limit or source.count))
        self._source, self._limit, self.reference_count = source, limit, source.reference_count
        self.start_tokens = (*source.start_tokens, tag) if tag and source.start_tokens else source.start_tokens
        self.tag = tag if not source.start_tokens else ""

    def read(self):
        pairs = itertools.islice(self._source.read(), self._limit or None)
        # An empty side stays empty, so that it is counted as such.
        return ((f"{self.tag} {s}" if self.tag and s.strip() else s, *targets) for s, *targets in pairs)

    def fingerprint(self):
        of_all = self._source.fingerprint()
        return sha256_of(of_all, self.tag, str(self._limit)) if self.tag or self._limit else of_all

    def where(self, i):
        return self._source.where(i)
