"""Pairs become rows: several to a packed row, or one to a row of a bucket."""

import numpy as np


def fill(tokens, offsets, lengths, pairs, row, start, rows: int, pack_length: int) -> dict[str, np.ndarray]:
    """One side of a batch: ids, segments (from 1; 0 is padding) and positions, each int32 [rows, pack_length].

    tokens: the store's flat ids, of which pair p takes `lengths[p]` from `offsets[p]`. `row`, `start`: where each pair
    goes. Segments number the pairs of a row in the order of `pairs`, so that both sides of a pair get the same number.
    """
    count = np.asarray(lengths[pairs], np.int64)
    total = int(count.sum())
    within = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    destination = np.repeat(row * pack_length + start, count) + within
    out = {name: np.zeros(rows * pack_length, np.int32) for name in ("ids", "segments", "positions")}
    out["ids"][destination] = tokens[np.repeat(np.asarray(offsets[pairs], np.int64), count) + within]
    out["segments"][destination] = np.repeat(_rank_in_row(row), count)
    out["positions"][destination] = within
    return {name: x.reshape(rows, pack_length) for name, x in out.items()}


def _rank_in_row(row: np.ndarray) -> np.ndarray:
    order = np.argsort(row, kind="stable")
    first = np.searchsorted(row[order], row[order], side="left")
    rank = np.empty(len(row), np.int32)
    rank[order] = np.arange(len(row)) - first + 1
    return rank
