"""Reads lines in windows: memory stays bounded, and a pipe is answered before it ends."""

import itertools
import os
import queue
import stat
import sys
import threading
from collections.abc import Iterator

from t2t_flax.errors import UserError

PAUSE = 0.05
"""Seconds without another line after which `arriving_windows` yields what it has."""


def full_windows(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lists of `size` lines, the last one shorter. An error of `lines` is raised after the lines before it."""
    window: list[str] = []
    try:
        for line in lines:
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


def arriving_windows(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """As `full_windows`, but yields a shorter list when no line has come for `PAUSE` seconds.

    A thread reads at most 2 x `size` lines ahead.
    """
    arrived: queue.Queue[str | Exception | None] = queue.Queue(size)

    def read() -> None:
        end: Exception | None = None
        try:
            for line in lines:
                arrived.put(line)
        except Exception as error:  # raised where the lines are used
            end = error
        arrived.put(end)

    threading.Thread(target=read, name="lines", daemon=True).start()
    window: list[str] = []
    while True:
        try:
            item = arrived.get(timeout=PAUSE if window else None)
        except queue.Empty:
            yield window
            window = []
            continue
        if isinstance(item, str):
            window.append(item)
        if window and (len(window) == size or not isinstance(item, str)):
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


def paired(
    windows: Iterator[list[str]],
    prefixes: Iterator[str] | None,
    names: tuple[str, str],
    start: int = 0,
) -> Iterator[tuple[list[str], list[str] | None]]:
    """Each window with as many lines of `prefixes`. Raises UserError with both counts, names[0] first,
    where they differ; `start` lines of both were read before.
    """
    count = start
    for window in windows:
        starts = None if prefixes is None else list(itertools.islice(prefixes, len(window)))
        if starts is not None and len(starts) < len(window):
            total = count + len(window) + sum(map(len, windows))
            raise _unequal(names, total, count + len(starts))
        count += len(window)
        yield window, starts
    more = sum(1 for _ in prefixes or ())
    if more:
        raise _unequal(names, count, count + more)


def _unequal(names: tuple[str, str], first: int, second: int) -> UserError:
    return UserError(
        f"{names[0]} has {first} lines and {names[1]} {second}: expected one prefix (possibly empty) per line."
    )
