"""Packing: place pairs in rows by first fit, longest first."""

import itertools

import numpy as np

_PARTS = 3
"""Number of parts into which a group of equally long pairs is split.

The parts differ in how much longer the source is than the target. Each looks for rows on its own,
because a row may have more room on one side.
"""


def first_fit(
    source_lengths: np.ndarray, target_lengths: np.ndarray, pack_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pack pairs into rows by first fit: longest pairs first, first row with room.

    Pairs with equal numbers of tokens on the longer side are placed together, as if each were as
    long as the longest of them. Each pair must fit into an empty row.

    Args:
        pack_length: tokens of a row on each side.

    Returns:
        Row of each pair, its start in the row's source and its start in the row's target, int64
        [pairs] each.
    """
    order, ends = _by_length(source_lengths, target_lengths)
    source, target = (x[order].astype(np.int64) for x in (source_lengths, target_lengths))
    rows = _OpenRows(source, target, pack_length)
    for first, end in itertools.pairwise(ends):
        rest = [rows.put_into_used(part) for part in _parts(first, end)]
        rows.put_into_new(np.concatenate(rest))
    out = np.empty((3, len(order)), np.int64)
    out[:, order] = rows.places()
    return out[0], out[1], out[2]


class _OpenRows:
    """Rows in the order in which they were opened, and the pairs in them."""

    def __init__(self, source: np.ndarray, target: np.ndarray, pack_length: int):
        self._source, self._target, self._pack_length = source, target, pack_length
        self._source_room, self._target_room = np.full((2, len(source)), pack_length, np.int32)
        self._used = 0
        self._placed: list[tuple[np.ndarray, np.ndarray]] = []

    def put_into_used(self, pairs: np.ndarray) -> np.ndarray:
        """Put pairs into the first used rows with room, and return the rest."""
        source, target = (max(1, x[pairs].max()) for x in (self._source, self._target))
        source_room, target_room = self._source_room[: self._used], self._target_room[: self._used]
        rows = np.flatnonzero((source_room >= source) & (target_room >= target))[: len(pairs)]
        if not len(rows):
            return pairs
        return self._put(
            pairs, rows, np.minimum(source_room[rows] // source, target_room[rows] // target)
        )

    def put_into_new(self, pairs: np.ndarray) -> None:
        """Put pairs of one length on the longer side into new rows."""
        if not len(pairs):
            return
        in_row = self._pack_length // max(1, self._source[pairs].max(), self._target[pairs].max())
        new = np.arange(self._used, self._used - (-len(pairs) // in_row))
        self._put(_mixed(pairs), new, np.full(len(new), in_row))
        self._used += len(new)

    def _put(self, pairs: np.ndarray, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Put at most `counts` of the pairs into each of the rows, and return the rest."""
        ends = np.minimum(np.cumsum(counts), len(pairs))
        used = int(np.searchsorted(ends, ends[-1])) + 1
        rows, ends, placed = rows[:used], ends[:used], pairs[: ends[-1]]
        counts = np.diff(ends, prepend=0)
        for room, lengths in (
            (self._source_room, self._source),
            (self._target_room, self._target),
        ):
            room[rows] -= np.add.reduceat(lengths[placed], ends - counts).astype(np.int32)
        self._placed.append((placed, np.repeat(rows, counts)))
        return pairs[len(placed) :]

    def places(self) -> np.ndarray:
        """Return row, source start and target start of each pair, int64 [3, pairs]."""
        pairs, row = map(np.concatenate, zip(*self._placed, strict=True))
        by_row = order_of(row)
        pairs, row = pairs[by_row], row[by_row]
        begins = np.searchsorted(row, np.arange(self._used))
        out = np.empty((3, len(row)), np.int64)
        out[0, pairs] = row
        for n, lengths in enumerate((self._source[pairs], self._target[pairs]), 1):
            before = np.cumsum(lengths) - lengths
            out[n, pairs] = before - before[begins][row]
        return out


def _parts(first: int, end: int) -> list[np.ndarray]:
    """Return the pairs `first` .. `end` - 1 in a few parts."""
    parts = _PARTS if end - first >= _PARTS**2 else 1
    edges = (first + (end - first) * n // parts for n in range(parts + 1))
    return [np.arange(*part) for part in itertools.pairwise(edges)]


def _by_length(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Sort pairs into groups of equal length on the longer side, longest groups first.

    Within a group, pairs with a longer source come last.

    Returns:
        The sorted indices, and the start of each group among them, followed by the end.
    """
    longer = np.maximum(source, target).astype(np.int64)
    order = order_of(source - target + longer.max())
    order = order[order_of(longer.max() - longer[order])]
    return order, [0, *(np.flatnonzero(np.diff(longer[order])) + 1).tolist(), len(order)]


def _mixed(group: np.ndarray) -> np.ndarray:
    """Alternate between the first and the last pairs of a group.

    This fills both sides of a row equally.
    """
    half = (len(group) + 1) // 2
    out = np.empty_like(group)
    out[0::2], out[1::2] = group[:half], group[half:][::-1]
    return out


def order_of(keys: np.ndarray) -> np.ndarray:
    """Return the indices that sort integers >= 0, stably.

    The time is linear if the integers fit into 16 bits.
    """
    return np.argsort(
        keys.astype(np.uint16) if keys.max(initial=0) < 1 << 16 else keys, kind="stable"
    )
