"""Packing: which row holds a pair (first fit, longest pair first), and the arrays of the rows."""

from array import array

import numpy as np

from t2t_flax.data.stored_ids import Sentences

_SCANNED, _MANY = 32, 2048
"""Rows looked at one by one, before NumPy looks at many at once."""
_NEW = 16
"""Sizes for which NumPy looks for the first row together."""


def first_fit(
    source_lengths: np.ndarray, target_lengths: np.ndarray, pack_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packs pairs into rows of `pack_length` tokens a side, longest pair first, each into the first row with room.

    Returns for each pair its row, and where it starts in the row's source and target, int64 [pairs]. Each pair must fit alone.
    """
    order = np.argsort(-np.maximum(source_lengths, target_lengths).astype(np.int64), kind="stable")
    sources, targets = source_lengths[order].astype(np.int32), target_lengths[order].astype(np.int32)
    sizes = sources.astype(np.int64) * (pack_length + 1) + targets
    new = np.sort(np.unique(sizes, return_index=True)[1])  # the first pair of each size
    source_room, target_room, last = [pack_length], [pack_length], 0  # the last row is empty
    rooms = array("i", [pack_length]) * len(order), array("i", [pack_length]) * len(order)
    source_rooms, target_rooms = (np.frombuffer(room, np.intc) for room in rooms)
    reached: dict[int, int] = {}  # rows before that have no room for a pair of this size: room only shrinks
    places = []
    for size, source, target in zip(sizes.tolist(), sources.tolist(), targets.tolist(), strict=True):
        if size not in reached:
            some, new = new[:_NEW], new[_NEW:]
            has_room = source_rooms[: last + 1] >= sources[some, None]
            has_room &= target_rooms[: last + 1] >= targets[some, None]
            reached.update(zip(sizes[some].tolist(), has_room.argmax(axis=1).tolist(), strict=True))
        row = reached[size]
        end = row + _SCANNED
        while source_room[row] < source or target_room[row] < target:
            row += 1
            if row == end < last:
                row = _first_with_room(source_rooms, target_rooms, source, target, row)
                break
        reached[size] = row
        if row == last:
            last += 1
            source_room.append(pack_length)
            target_room.append(pack_length)
        places.append((row, pack_length - source_room[row], pack_length - target_room[row]))
        source_room[row] = rooms[0][row] = source_room[row] - source
        target_room[row] = rooms[1][row] = target_room[row] - target
    out = np.zeros((3, len(order)), np.int64)
    out[:, order] = np.array(places, np.int64).reshape(-1, 3).T
    return out[0], out[1], out[2]


def _first_with_room(source_room: np.ndarray, target_room: np.ndarray, source: int, target: int, row: int) -> int:
    """The first row from `row` on with room for a pair; an empty one has it."""
    while True:
        has_room = (source_room[row : row + _MANY] >= source) & (target_room[row : row + _MANY] >= target)
        first = int(has_room.argmax())
        if has_room[first]:
            return row + first
        row += _MANY


def fill_rows(
    sentences: Sentences,
    pairs: np.ndarray,
    row: np.ndarray,
    start: np.ndarray,
    shape: tuple[int, int],
) -> dict[str, np.ndarray]:
    """One side of a batch: ids, segments (from 1; 0 is padding) and positions, each int32 [rows, pack_length].

    row, start: where each of `pairs` goes. shape: (rows, pack_length). Segments number the pairs of a row in the order
    of `pairs`, so that both sides of a pair get the same number.
    """
    rows, pack_length = shape
    segment = _rank_in_row(row, rows)
    order = _order_of(start)
    order = order[_order_of(row[order])]
    order = order[sentences.lengths[pairs[order]] > 0]
    pairs, segment = pairs[order], segment[order]
    begin = row[order] * pack_length + start[order]
    # Slots are runs in turn: padding, a sentence, padding ..., some of no slot.
    edges = np.zeros(2 * len(pairs) + 2, np.int64)
    edges[1:-1:2], edges[2::2], edges[-1] = begin, begin + sentences.lengths[pairs], rows * pack_length
    runs = np.diff(edges)

    def spread(values: np.ndarray, dtype: type) -> np.ndarray:
        """A value for each sentence, in each of its slots; 0 in padding."""
        of_runs: np.ndarray = np.zeros(len(runs), dtype)
        of_runs[1::2] = values
        return np.repeat(of_runs, runs)

    slots = np.arange(rows * pack_length, dtype=np.int32)
    segments = spread(segment, np.int32)
    real = segments > 0
    positions = (slots - spread(begin, np.int32)) * real
    index = slots + spread(sentences.offsets[pairs] - begin, np.int64)
    ids = np.zeros(len(slots), np.int32)
    ids[real] = sentences.ids.take(index[real])
    arrays = {"ids": ids, "segments": segments, "positions": positions}
    return {name: x.reshape(shape) for name, x in arrays.items()}


def _rank_in_row(row: np.ndarray, rows: int) -> np.ndarray:
    """The number of each pair among those of its row, from 1, int32."""
    order = _order_of(row)
    before = np.cumsum(np.bincount(row, minlength=rows)) - np.bincount(row, minlength=rows)
    rank = np.empty(len(row), np.int32)
    rank[order] = np.arange(1, len(row) + 1) - before[row[order]]
    return rank


def _order_of(keys: np.ndarray) -> np.ndarray:
    """Sorts stably; NumPy sorts 16-bit integers in linear time."""
    return np.argsort(keys.astype(np.uint16) if keys.max(initial=0) < 1 << 16 else keys, kind="stable")
