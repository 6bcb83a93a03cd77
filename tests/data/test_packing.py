"""First fit and the arrays of rows equal naive implementations at any size."""

import numpy as np
import pytest
from helpers.tracing import traced

from t2t_flax.data.batching import packing
from t2t_flax.data.batching.packing import first_fit
from t2t_flax.data.batching.rows import fill_rows
from t2t_flax.data.stored_ids import Sentences


def naive_first_fit(source, target, room):
    """The naive rule: longest first, each pair into the first row with room."""
    row, starts, used = np.zeros(len(source), int), np.zeros((2, len(source)), int), []
    for i in sorted(range(len(source)), key=lambda i: -max(source[i], target[i])):
        sides = (int(source[i]), int(target[i]))
        at = next(
            (
                r
                for r, u in enumerate(used)
                if all(a + b <= room for a, b in zip(u, sides, strict=True))
            ),
            len(used),
        )
        if at == len(used):
            used.append([0, 0])
        row[i], starts[:, i] = at, used[at]
        used[at] = [a + b for a, b in zip(used[at], sides, strict=True)]
    return row, *starts


def random_lengths(kind, rng, room, count):
    source = rng.integers(1, room + 1, count)
    target = {
        "any": rng.integers(1, room + 1, count),
        "alike": np.clip(source + rng.integers(-2, 3, count), 1, room),
        "lopsided": np.where(rng.random(count) < 0.5, 1, room // 2 + 1),
        "equal": source,
        "no source": rng.integers(1, room + 1, count),
    }[kind]
    return (np.where(rng.random(count) < 0.5, 0, source) if kind == "no source" else source), target


@pytest.mark.parametrize("kind", ["any", "alike", "lopsided", "equal", "no source"])
def test_pairs_lie_side_by_side_in_few_rows(kind):
    """No pair overlaps another, and no row has a hole."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        room, count = int(rng.integers(3, 70)), int(rng.integers(1, 400))
        lengths = random_lengths(kind, rng, room, count)
        row, *starts = first_fit(*(x.astype(np.int32) for x in lengths), room)
        for length, start in zip(lengths, starts, strict=True):
            for r in range(int(row.max()) + 1):
                here = np.flatnonzero((row == r) & (length > 0))
                here = here[np.argsort(start[here])]
                np.testing.assert_array_equal(start[here], np.cumsum(length[here]) - length[here])
                assert length[here].sum() <= room


@pytest.mark.parametrize(
    ("kind", "more"), [("alike", 1.03), ("equal", 1.0), ("lopsided", 1.06), ("no source", 1.02)]
)
def test_rows_are_about_as_few_as_in_a_plain_first_fit(kind, more):
    lengths = random_lengths(kind, np.random.default_rng(0), 20, 3000)
    packed, plain = (rule(*lengths, 64)[0].max() + 1 for rule in (first_fit, naive_first_fit))
    assert packed <= more * plain + 1


def naive_fill(sentences, pairs, row, start, shape):
    """Sentence after sentence."""
    arrays = {name: np.zeros(shape, np.int32) for name in ("ids", "segments", "positions")}
    seen = np.zeros(shape[0], int)
    for pair, r, at in zip(pairs, row, start, strict=True):
        begin, length = sentences.offsets[pair], sentences.lengths[pair]
        seen[r] += 1
        arrays["ids"][r, at : at + length] = sentences.ids[begin : begin + length]
        arrays["segments"][r, at : at + length] = seen[r]
        arrays["positions"][r, at : at + length] = np.arange(length)
    return arrays


def test_arrays_match_a_plain_loop():
    for seed in range(30):
        check_arrays(seed, np.random.default_rng(seed))


def check_arrays(seed, rng):
    room, count = int(rng.integers(3, 40)), int(rng.integers(1, 60))
    lengths = rng.integers(0, (room if seed % 10 else 0) + 1, (2, count)).astype(np.int32)
    pairs = rng.permutation(count)[: rng.integers(1, count + 1)]
    row, *starts = first_fit(*lengths[:, pairs], room)
    if seed % 3 == 0:  # a pair in each row
        row, starts = rng.permutation(len(pairs)), list(np.zeros((2, len(pairs)), np.int64))
    for length, start in zip(lengths, starts, strict=True):
        ids = rng.integers(1, 60_000, length.sum()).astype(np.uint16)
        sentences = Sentences(ids, np.cumsum(length) - length, length)
        shape = int(row.max()) + 1 + int(rng.integers(3)), room
        filled = fill_rows(sentences.at(pairs), row, start, shape)
        expected = naive_fill(sentences, pairs, row, start, shape)
        for array, same in zip(filled, expected.values(), strict=True):
            np.testing.assert_array_equal(array, same)
            assert array.dtype == np.int32


def lines_run(function, *arguments) -> int:
    """How many lines of the module's code a call runs."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if frame.f_code.co_filename != packing.__file__:
            return None
        count += 1
        return trace

    traced(trace, function, *arguments)
    return count


def test_packing_is_not_quadratic():
    rng = np.random.default_rng(0)
    lines = []
    for count in (4000, 32000):
        source = np.clip(rng.lognormal(3.1, 0.6, count), 2, 250).astype(np.int32)
        target = np.clip(source * rng.normal(1.0, 0.15, count), 2, 250).astype(np.int32)
        lines.append(lines_run(first_fit, source, target, 256))
    assert lines[1] < 12 * lines[0], (
        "8 times the pairs: the plain rule takes about 64 times as long"
    )
