"""Pairs become rows: several to a packed row, or one to a row of a bucket."""

import numpy as np


def first_fit(
    source_lengths: np.ndarray, target_lengths: np.ndarray, row_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packs pairs into rows of `row_length` tokens a side, longest pair first, each into the first row with room.

    Returns for each pair its row, and where it starts in the row's source and target. Each pair must fit alone.
    """
    count = len(source_lengths)
    row, source_start, target_start = (np.zeros(count, np.int64) for _ in range(3))
    source_used, target_used = (np.zeros(count, np.int64) for _ in range(2))
    opened = 0
    for i in np.argsort(-np.maximum(source_lengths, target_lengths), kind="stable"):
        s, t = source_lengths[i], target_lengths[i]
        fits = (source_used[:opened] + s <= row_length) & (target_used[:opened] + t <= row_length)
        at = int(np.argmax(fits)) if opened and fits.any() else opened
        opened = max(opened, at + 1)
        row[i], source_start[i], target_start[i] = at, source_used[at], target_used[at]
        source_used[at] += s
        target_used[at] += t
    return row, source_start, target_start


def fill(tokens, offsets, lengths, pairs, row, start, rows: int, row_length: int) -> dict[str, np.ndarray]:
    """One side of a batch: ids, segments (from 1; 0 is padding) and positions, each int32 [rows, row_length].

    tokens: the store's flat ids, of which pair p takes `lengths[p]` from `offsets[p]`. `row`, `start`: where each pair
    goes. Segments number the pairs of a row in the order of `pairs`, so that both sides of a pair get the same number.
    """
    count = np.asarray(lengths[pairs], np.int64)
    total = int(count.sum())
    within = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    destination = np.repeat(row * row_length + start, count) + within
    out = {name: np.zeros(rows * row_length, np.int32) for name in ("ids", "segments", "positions")}
    out["ids"][destination] = tokens[np.repeat(np.asarray(offsets[pairs], np.int64), count) + within]
    out["segments"][destination] = np.repeat(_rank_in_row(row), count)
    out["positions"][destination] = within
    return {name: x.reshape(rows, row_length) for name, x in out.items()}


def _rank_in_row(row: np.ndarray) -> np.ndarray:
    order = np.argsort(row, kind="stable")
    first = np.searchsorted(row[order], row[order], side="left")
    rank = np.empty(len(row), np.int32)
    rank[order] = np.arange(len(row)) - first + 1
    return rank
