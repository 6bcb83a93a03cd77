"""Packing: which row holds a pair (first fit, longest pair first), and the arrays of the rows."""

import numpy as np

from t2t_flax.data.token_store import Sentences


def first_fit(
    source_lengths: np.ndarray, target_lengths: np.ndarray, pack_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packs pairs into rows of `pack_length` tokens a side, longest pair first, each into the first row with room.

    Returns for each pair its row, and where it starts in the row's source and target. Each pair must fit alone.

    Rows are filled one after the other, each with the first remaining pair that fits, which gives the same rows: a pair
    goes to the first row that had room when its turn came. Pairs are grouped in classes of equal lengths, and bit masks
    of the classes that have pairs left make the time nearly independent of the number of rows.
    """
    longer = np.maximum(source_lengths, target_lengths)
    order = np.argsort(-longer.astype(np.int64), kind="stable")
    remaining = _Remaining(source_lengths[order], target_lengths[order], longer[order])
    row, source_start, target_start = (np.zeros(len(order), np.int64) for _ in range(3))
    rows, places = _assign(remaining, len(order), pack_length)
    row[order], source_start[order], target_start[order] = rows, *places
    return row, source_start, target_start


def _assign(remaining: "_Remaining", count: int, pack_length: int) -> tuple[list[int], tuple[list[int], list[int]]]:
    rows, source_places, target_places = [0] * count, [0] * count, [0] * count
    number = 0
    while remaining.levels:
        source_room = target_room = pack_length
        while (i := remaining.take(source_room, target_room)) >= 0:
            rows[i] = number
            source_places[i], target_places[i] = pack_length - source_room, pack_length - target_room
            source_room -= remaining.source[i]
            target_room -= remaining.target[i]
        number += 1
    return rows, (source_places, target_places)


class _Remaining:
    """The pairs without a row, by their index in the order (longest first).

    A level is the pairs whose longer side has m tokens; they are consecutive in the order. `levels` has bit m set while
    the level has pairs left. For pairs whose sides differ, `by_shorter[side][m]` has bit n set while one is left whose
    longer side, m, is the source (side 0) or the target (1) and whose other side is n; `uneven[side]` has bit m set
    while there is any.
    """

    def __init__(self, source: np.ndarray, target: np.ndarray, longer: np.ndarray):
        self.source, self.target = source.tolist(), target.tolist()
        width = int(longer[0]) + 1 if len(longer) else 1
        keys = source.astype(np.int64) * width + target
        self._width, self._members = width, np.argsort(keys, kind="stable").tolist()
        unique, counts = np.unique(keys, return_counts=True)
        starts = np.cumsum(counts) - counts
        self._head = dict(zip(unique.tolist(), starts.tolist(), strict=True))
        self._class_left = dict(zip(unique.tolist(), counts.tolist(), strict=True))
        self._taken = bytearray(len(longer))
        sizes = np.bincount(longer, minlength=width)
        self._level_left = sizes.tolist()
        self._level_head = (len(longer) - np.cumsum(sizes)).tolist()
        self.levels = sum(1 << m for m in np.flatnonzero(sizes).tolist())
        self._by_shorter, self._uneven = [[0] * width, [0] * width], [0, 0]
        for key in unique.tolist():
            s, t = divmod(key, width)
            if s != t:
                self._by_shorter[s < t][max(s, t)] |= 1 << min(s, t)
                self._uneven[s < t] |= 1 << max(s, t)

    def take(self, source_room: int, target_room: int) -> int:
        """Removes the first pair that fits into this room and returns its index in the order; -1 if none fits."""
        low, high, side = source_room, target_room, 1
        if low > high:
            low, high, side = high, low, 0
        levels = self._uneven[side] >> (low + 1) << (low + 1) & ((2 << high) - 1)
        while levels:  # longer than the smaller room: only pairs that are short on that side
            level = levels.bit_length() - 1
            fitting = self._by_shorter[side][level] & ((2 << low) - 1)
            if fitting:
                return self._remove(self._first_of_classes(level, fitting, side))
            levels ^= 1 << level
        levels = self.levels & ((2 << low) - 1)
        if not levels:
            return -1
        level = levels.bit_length() - 1
        i = self._level_head[level]
        while self._taken[i]:
            i += 1
        self._level_head[level] = i
        return self._remove(i)

    def _first_of_classes(self, level: int, shorter: int, side: int) -> int:
        first = -1
        while shorter:
            bit = shorter & -shorter
            shorter_level = bit.bit_length() - 1
            shorter ^= bit
            key = shorter_level * self._width + level if side else level * self._width + shorter_level
            at = self._head[key]
            while self._taken[self._members[at]]:
                at += 1
            self._head[key] = at
            i = self._members[at]
            first = i if first < 0 or i < first else first
        return first

    def _remove(self, i: int) -> int:
        s, t = self.source[i], self.target[i]
        level = s if s > t else t
        self._taken[i] = 1
        self._level_left[level] -= 1
        if not self._level_left[level]:
            self.levels ^= 1 << level
        key = s * self._width + t
        self._class_left[key] -= 1
        if not self._class_left[key] and s != t:
            side = s < t
            self._by_shorter[side][level] ^= 1 << (t if s > t else s)
            if not self._by_shorter[side][level]:
                self._uneven[side] ^= 1 << level
        return i


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
