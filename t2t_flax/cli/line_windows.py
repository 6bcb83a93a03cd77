"""Reads lines in windows: memory stays bounded, and a pipe is answered before it ends."""

import os
import queue
import stat
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

from t2t_flax.errors import UserError

PAUSE = 0.05
"""Seconds without another line after which `arriving_windows` yields what it has."""


class Line(NamedTuple):
    """A line of the input, counted from 0, and the line beside it: the forced beginning of its translation, or the target
    that is scored.
    """

    number: int
    text: str
    beside: str | None = None


PREFIX_PER_LINE = "expected one prefix (possibly empty) per line"


def paired(
    lines: Iterator[str],
    beside: Iterator[str] | None,
    names: tuple[str, str | None],
    expected: str = PREFIX_PER_LINE,
) -> Iterator[Line]:
    """Each line with the one of the same number in `beside`. Raises UserError with both counts, names[0] first, and what is
    `expected`, after the last pair if the counts differ.
    """
    if beside is None:
        yield from (Line(number, text) for number, text in enumerate(lines))
        return

    def unequal(first: int, second: int) -> UserError:
        return UserError(f"{names[0]} has {first} lines and {names[1]} {second}: {expected}.")

    count = 0
    for text in lines:
        other = next(beside, None)
        if other is None:
            raise unequal(count + 1 + sum(1 for _ in lines), count)
        yield Line(count, text, other)
        count += 1
    more = sum(1 for _ in beside)
    if more:
        raise unequal(count, count + more)


def full_windows(lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
    """Lists of `size` consecutive lines, shorter before a gap in their numbers and at the end. An error of `lines` is
    raised after the lines before it.
    """
    window: list[Line] = []
    try:
        for line in lines:
            if window and line.number != window[-1].number + 1:
                yield window
                window = []
            window.append(line)
            if len(window) == size:
                yield window
                window = []
    except UserError:
        if window:
            yield window
        raise
    if window:
        yield window


def arriving_windows(lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
    """As `full_windows` for lines without a gap, but yields a shorter list when no line has come for `PAUSE` seconds.

    A thread reads at most 2 x `size` lines ahead.
    """
    arrived: queue.Queue[Line | Exception | None] = queue.Queue(size)

    def read() -> None:
        end: Exception | None = None
        try:
            for line in lines:
                arrived.put(line)
        except Exception as error:  # raised where the lines are used
            end = error
        arrived.put(end)

    threading.Thread(target=read, name="lines", daemon=True).start()
    window: list[Line] = []
    while True:
        try:
            item = arrived.get(timeout=PAUSE if window else None)
        except queue.Empty:
            yield window
            window = []
            continue
        if isinstance(item, Line):
            window.append(item)
        if window and (len(window) == size or not isinstance(item, Line)):
            yield window
            window = []
        if isinstance(item, Exception):
            raise item
        if item is None:
            return


def arrives_slowly(name: str) -> bool:
    """Whether the file ("-": standard input) is a terminal, a pipe or a socket."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if name == "-" else os.stat(name).st_mode
    except (OSError, ValueError):  # not a file of the operating system
        return False
    return not stat.S_ISREG(mode)
