"""Several sources as one corpus, with tags or control symbols before the source sentences of some and limits to their pairs."""

import hashlib
import itertools
import json
from collections.abc import Sequence

from t2t_flax.data.sources.base import Source


class SourcePart(Source):
    """The first `limit` pairs of a source (0 = all), with `tag` and a space before each source sentence, or `start_tokens`
    before its ids, on which the fingerprint does not depend.
    """

    def __init__(self, source: Source, *, tag: str = "", limit: int = 0, start_tokens: tuple[str, ...] = ()):
        super().__init__(source.spec, source.count and min(source.count, limit or source.count))
        self._source, self.tag, self._limit, self.start_tokens = source, tag, limit, start_tokens
        self.reference_count = source.reference_count

    def read(self):
        pairs = itertools.islice(self._source.read(), self._limit or None)
        # An empty side stays empty, so that it is counted as such.
        return ((f"{self.tag} {s}" if self.tag and s.strip() else s, *targets) for s, *targets in pairs)

    def fingerprint(self):
        if not (self.tag or self._limit):
            return self._source.fingerprint()
        return _sha256([self._source.fingerprint(), self.tag, self._limit])

    def where(self, i):
        return self._source.where(i)


class JoinedSource(Source):
    """All pairs of several sources, one source after the other."""

    def __init__(self, spec: str, parts: Sequence[Source]):
        self.spec, self._parts = spec, tuple(parts)

    @property
    def parts(self):
        return self._parts

    @property
    def count(self):
        """The sum of the parts' counts; None until all are known."""
        counts = [part.count for part in self._parts]
        return None if None in counts else sum(counts)

    def read(self):
        return itertools.chain.from_iterable(part.pairs() for part in self._parts)  # none may be empty

    def pairs(self):
        return self.read()

    def fingerprint(self):
        return _sha256([part.fingerprint() for part in self._parts])

    def where(self, i):
        for part in self._parts:
            if part.count is None or i < part.count:
                return part.where(i)
            i -= part.count
        return f"pair {i} after the last of {self.spec}"


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
