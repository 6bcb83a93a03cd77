"""Several sources as one corpus, with control symbols before the source sentences of some."""

import itertools
from collections.abc import Sequence

from t2t_flax.data.sources.base import Source, sha256_of


class StartedSource(Source):
    """A source with `start_tokens` before the ids of its source sentences, on which the fingerprint does not depend."""

    def __init__(self, source: Source, start_tokens: tuple[str, ...]):
        super().__init__(source.spec, source.count)
        self._source, self.start_tokens, self.reference_count = source, start_tokens, source.reference_count

    def read(self):
        return self._source.read()

    def fingerprint(self):
        return self._source.fingerprint()

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
        return sha256_of([part.fingerprint() for part in self._parts])

    def where(self, i):
        for part in self._parts:
            if part.count is None or i < part.count:
                return part.where(i)
            i -= part.count
        return f"pair {i} after the last of {self.spec}"
