"""What a filter of training pairs is, beside the core's own: pairs that are too long or have an empty side."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from t2t_flax.data.sources.base import Source


class Pair(NamedTuple):
    """A pair without an empty side: its texts, the source without a tag, and their ids without EOS."""

    source: str
    target: str
    source_ids: Sequence[int]
    target_ids: Sequence[int]


Unread = tuple[str, str] | str
"""The texts of a pair, or the reason why it is dropped before it is tokenized."""


class PairFilter:
    """Finds training pairs that are dropped for one reason; a picklable object, of which each worker process has a copy."""

    reason: ClassVar[str]
    """A word, in lists of dropped pairs and as a count of a token store's meta.json."""
    shown: ClassVar[str]
    """In messages, after a number: "in another language"."""

    def rule(self) -> str:
        """Which pairs are dropped, for `explain`."""
        return self.shown

    def check_available(self) -> None:
        """Raises UserError for what it lacks, before the minutes of training a tokenizer."""

    def as_stored(self) -> dict[str, Any]:
        """As part of a store's recipe, in JSON values."""
        return {}

    def of_part(self, number: int) -> "PairFilter":
        """The filter of one of the source's parts."""
        return self

    def in_order(self, parts: Sequence[Source], pairs: Sequence[Iterator[Unread]]) -> Sequence[Iterator[Unread]]:
        """The pairs of all parts, in one process and in order, where each may be replaced by the reason."""
        return pairs

    def drops(self, pair: Pair) -> bool:
        """Whether a pair is dropped; in any order, in worker processes."""
        return False
