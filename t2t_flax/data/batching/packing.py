"""Packing: which row holds a pair (first fit, longest pair first), and the arrays of the rows."""

import numpy as np

from t2t_flax.data.token_store import Sentences


def first_fit(
    source_lengths: np.ndarray, target_lengths: np.ndarray, pack_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packs pairs into rows of `pack_length` tokens a side, longest pair first, each into the first row with room.

    Returns for each pair its row, and where it starts in the row's source and target, int64 [pairs]. Each pair must fit alone.
    """
    order = np.argsort(-np.maximum(source_lengths, target_lengths).astype(np.int64), kind="stable")
    source_room: list[int] = []
    target_room: list[int] = []
    reached: dict[
        tuple[int, int], int
    ] = {}  # rows before that have no room for a pair of these lengths: room only shrinks
    places = []
    for pair in zip(source_lengths[order].tolist(), target_lengths[order].tolist(), strict=True):
        source, target = pair
        row = reached.get(pair, 0)
        while row < len(source_room) and (source_room[row] < source or target_room[row] < target):
            row += 1
        if row == len(source_room):
            source_room.append(pack_length)
            target_room.append(pack_length)
        reached[pair] = row
        places.append((row, pack_length - source_room[row], pack_length - target_room[row]))
        source_room[row] -= source
        target_room[row] -= target
    out = np.zeros((3, len(order)), np.int64)
    out[:, order] = np.array(places, np.int64).reshape(-1, 3).T
    return out[0], out[1], out[2]


def fill_rows(
    sentences: Sentences,
    pairs: np.ndarray,
    row: np.ndarray,
    start: np.ndarray | int,
    shape: tuple[int, int],
) -> dict[str, np.ndarray]:
    """One side of a batch: ids, segments (from 1; 0 is padding) and positions, each int32 [rows, pack_length].

    row, start: where each of `pairs` goes. shape: (rows, pack_length). Segments number the pairs of a row in the order
    of `pairs`, so that both sides of a pair get the same number.
    """
    rows, pack_length = shape
    count = np.asarray(sentences.lengths[pairs], np.int64)
    begin = np.cumsum(count) - count
    index = np.arange(int(count.sum()))
    destination = index + np.repeat(row * pack_length + start - begin, count)
    out = {name: np.zeros(rows * pack_length, np.int32) for name in ("ids", "segments", "positions")}
    offset = np.asarray(sentences.offsets[pairs], np.int64)
    out["ids"][destination] = sentences.ids[index + np.repeat(offset - begin, count)]
    out["segments"][destination] = np.repeat(_rank_in_row(row), count)
    out["positions"][destination] = index - np.repeat(begin, count)
    return {name: x.reshape(shape) for name, x in out.items()}


def _rank_in_row(row: np.ndarray) -> np.ndarray:
    order = np.argsort(row, kind="stable")
    first = np.searchsorted(row[order], row[order], side="left")
    rank = np.empty(len(row), np.int32)
    rank[order] = np.arange(len(row)) - first + 1
    return rank
