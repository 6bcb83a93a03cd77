"""Text that trains a tokenizer: the pairs that the filters of training pairs keep."""

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator

from t2t_flax.data.preprocess import CHUNK_PAIRS, EMPTY, Pair, Policies, rows_of
from t2t_flax.data.progress import Report, reported, silent
from t2t_flax.data.sources import PairOrReason, Source, counted, draw_pairs
from t2t_flax.data.token_store import TOO_LONG
from t2t_flax.errors import UserError

CHARACTERS_OF_TOKEN = 16
"""Maximum number of characters of a piece in SentencePiece's models."""


class TokenizerText(Source):
    """Pairs of a source that train a tokenizer, tags included.

    The pairs have text on both sides, and the policies can keep them. A side is too long if it has
    more characters than `Policies.max_length` tokens may have. Filters of tokens are left out,
    since there is no tokenizer yet.

    Args:
        report: receives how far the source is read. It is also told when a sample is complete and
            the training of a tokenizer follows.
    """

    def __init__(self, source: Source, policies: Policies, report: Report = silent):
        super().__init__(source.spec)
        self.source, self.policies = source, policies
        self.filters = [one for one in policies.filters if not one.needs_tokens]
        self.report, self.longest = report, policies.max_length * CHARACTERS_OF_TOKEN
        self._dropped = Counter[str]()

    def read(self):
        kept = False
        for number, pairs in enumerate(self.candidates()):
            for pair in self.kept(number, pairs):
                kept = True
                yield pair
        if not kept:
            raise self.nothing_left()

    def fingerprint(self):
        return self.source.fingerprint()

    def sample(self, count):
        """Return a sample of the pairs.

        Filters see only the pairs that were drawn, so the pairs that they drop make the sample
        smaller.
        """
        numbered = (
            zip(itertools.repeat(number), pairs) for number, pairs in enumerate(self.candidates())
        )
        drawn = draw_pairs(itertools.chain.from_iterable(numbered), count).pairs
        of_parts = itertools.groupby(drawn, key=operator.itemgetter(0))
        kept = [
            pair
            for number, pairs in of_parts
            for pair in self.kept(number, (pair for _, pair in pairs))
        ]
        if not kept:
            raise self.nothing_left()
        self.report("train the tokenizer", 0, None, "")
        return kept

    def candidates(self) -> Iterator[Iterator[tuple[str, str]]]:
        """Yield an iterator over the pairs of each part that the filters may keep.

        The pairs have text on both sides, and no filter drops them because of other pairs.
        """
        self._dropped = Counter[str]()
        numbers = itertools.count()
        for of_part in rows_of(self.source.parts, self.filters, self.report):
            rows = reported(
                of_part, numbers, "sample sentences", self.report, lambda: self.source.count
            )
            yield filter(None, map(self._with_text, rows))

    def _with_text(self, row: PairOrReason) -> tuple[str, str] | None:
        """Return the pair, or None if it is dropped, has an empty side or is too long.

        Dropped pairs are counted.
        """
        if isinstance(row, str) or not all(map(str.strip, row)):
            self._dropped[row if isinstance(row, str) else "empty"] += 1
            return None
        if max(map(len, row)) > self.longest:
            source, target = (
                text if len(text) <= self.longest else " ".join(text.split()) for text in row
            )
            if self.policies.on_too_long == "truncate":
                return source[: self.longest], target[: self.longest]
            if self.policies.on_too_long == "drop" and max(len(source), len(target)) > self.longest:
                self._dropped["too_long"] += 1
                return None
        return row

    def kept(self, number: int, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Yield the pairs that the filters keep.

        Args:
            number: number of the source's part that has the pairs.
        """
        part, rest = self.source.parts[number], iter(pairs)
        while chunk := [*itertools.islice(rest, CHUNK_PAIRS)]:
            for one in self.filters:
                drops = one.drops(
                    [
                        Pair(part.without_tag(source), target, (), (), number)
                        for source, target in chunk
                    ]
                )
                self._dropped[one.reason] += sum(drops)
                chunk = [pair for pair, drop in zip(chunk, drops, strict=True) if not drop]
            yield from chunk

    def nothing_left(self) -> UserError:
        """Return the error for a text without pairs."""
        shown = {
            **self.source.reasons,
            "empty": EMPTY,
            "too_long": TOO_LONG,
            **{one.reason: one.shown for one in self.filters},
        }
        return UserError(
            f"{self.spec}: no pair is left to train a tokenizer on: {counted(self._dropped, shown)}"
        )
