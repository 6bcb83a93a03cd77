"""Packing: place pairs in rows by first fit, longest first, and fill the arrays."""

import itertools

import numpy as np

from t2t_flax.data.stored_ids import Sentences

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
    source_room, target_room = np.full((2, len(order) + 1), pack_length, np.int32)
    last = 0
    placed: list[np.ndarray] = []
    rows: list[np.ndarray] = []

    def place(pairs: np.ndarray, candidates: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Put pairs into candidate rows, `counts` of them in each, and return the rest."""
        ends = np.minimum(np.cumsum(counts), len(pairs))
        used = int(np.searchsorted(ends, ends[-1])) + 1
        into, ends, now = candidates[:used], ends[:used], pairs[: ends[-1]]
        counts = np.diff(ends, prepend=0)
        source_room[into] -= np.add.reduceat(source[now], ends - counts).astype(np.int32)
        target_room[into] -= np.add.reduceat(target[now], ends - counts).astype(np.int32)
        placed.append(now)
        rows.append(np.repeat(into, counts))
        return pairs[len(now) :]

    for first, end in itertools.pairwise(ends):
        rest: list[np.ndarray] = []
        parts = _PARTS if end - first >= _PARTS**2 else 1
        for begin, until in itertools.pairwise(
            first + (end - first) * n // parts for n in range(parts + 1)
        ):
            part = np.arange(begin, until)
            longest_source, longest_target = (
                max(1, source[begin:until].max()),
                max(1, target[begin:until].max()),
            )
            fitting = np.flatnonzero(
                (source_room[:last] >= longest_source) & (target_room[:last] >= longest_target)
            )
            fitting = fitting[: len(part)]
            if len(fitting):
                counts = np.minimum(
                    source_room[fitting] // longest_source, target_room[fitting] // longest_target
                )
                part = place(part, fitting, counts)
            rest.append(part)
        group = np.concatenate(rest)
        if len(group):
            in_row = pack_length // max(
                1, source[first], target[first], source[end - 1], target[end - 1]
            )
            new = -(-len(group) // in_row)
            place(_mixed(group), np.arange(last, last + new), np.full(new, in_row))
            last += new
    pairs, row = np.concatenate(placed), np.concatenate(rows)
    by_row = order_of(row)
    pairs, row = pairs[by_row], row[by_row]
    begins = np.searchsorted(row, np.arange(last))
    out = np.empty((3, len(row)), np.int64)
    out[0, order[pairs]] = row
    for n, length in enumerate((source[pairs], target[pairs]), 1):
        before = np.cumsum(length) - length
        out[n, order[pairs]] = before - before[begins][row]
    return out[0], out[1], out[2]


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


def fill_rows(
    sentences: Sentences, row: np.ndarray, start: np.ndarray, shape: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Return the arrays of one side of a batch.

    Segments number the sentences of a row in their order, so both sides of a pair get the same
    number.

    Args:
        row: row of each sentence.
        start: start of each sentence in its row.
        shape: (rows, pack_length).

    Returns:
        ids, segments (from 1; 0 is padding) and positions, int32 [rows, pack_length] each.
    """
    rows, pack_length = shape
    segment = _rank_in_row(row, rows)
    order = order_of(start)
    order = order[order_of(row[order])]
    order = order[sentences.lengths[order] > 0]
    sentences, segment = sentences.at(order), segment[order]
    begin = row[order] * pack_length + start[order]
    # Slots form alternating runs: padding, a sentence, padding, ...; padding may be empty.
    edges = np.zeros(2 * len(order) + 2, np.int64)
    edges[1:-1:2], edges[2::2], edges[-1] = begin, begin + sentences.lengths, rows * pack_length
    runs = np.diff(edges)

    def spread(values: np.ndarray, dtype: type) -> np.ndarray:
        """Return the value of each sentence in each of its slots, and 0 in padding."""
        of_runs: np.ndarray = np.zeros(len(runs), dtype)
        of_runs[1::2] = values
        return np.repeat(of_runs, runs)

    slots = np.arange(rows * pack_length, dtype=np.int32)
    segments = spread(segment, np.int32)
    real = segments > 0
    positions = (slots - spread(begin, np.int32)) * real
    index = slots + spread(sentences.offsets - begin, np.int64)
    ids = np.zeros(len(slots), np.int32)
    ids[real] = sentences.ids.take(index[real])
    arrays = {"ids": ids, "segments": segments, "positions": positions}
    return {name: x.reshape(shape) for name, x in arrays.items()}


def _rank_in_row(row: np.ndarray, rows: int) -> np.ndarray:
    """Return the number of each pair within its row, from 1, int32."""
    order = order_of(row)
    before = np.cumsum(np.bincount(row, minlength=rows)) - np.bincount(row, minlength=rows)
    rank = np.empty(len(row), np.int32)
    rank[order] = np.arange(1, len(row) + 1) - before[row[order]]
    return rank


def order_of(keys: np.ndarray) -> np.ndarray:
    """Return the indices that sort integers >= 0, stably.

    The time is linear if the integers fit into 16 bits.
    """
    return np.argsort(
        keys.astype(np.uint16) if keys.max(initial=0) < 1 << 16 else keys, kind="stable"
    )
