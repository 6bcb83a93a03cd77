"""Answers the windows of an input in order, with progress. Each line has its answer; what is wrong with it is said at the end."""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from t2t_flax.cli.line_windows import Line

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel

WINDOW_BATCHES = 128
"""Lines are read, sorted by length and answered in windows of this many batches, ..."""
WINDOW_LINES = 2**14
"""... but of at least 8 batches and otherwise of at most this many lines."""
PROGRESS_SECONDS = 10.0
_SHOWN = 10


class Note(NamedTuple):
    """What happened to a line, counted from 0, and more about it."""

    event: str
    number: int
    more: str = ""


@dataclasses.dataclass(frozen=True)
class Answers:
    """The output of a window, and what is to be said of its lines."""

    text: str
    notes: list[Note]


class Answering:
    """How a command answers a window of lines. progress(lines done, total) is called after each batch."""

    verb: str
    """What progress reports: `translated`."""
    window: int
    """Lines of a full window."""

    def introduce(self, say: Callable[[str], None]) -> None:
        """Says what the user should know at the start."""

    def answer(self, window: list[Line], progress: Callable[[int, int], None]) -> Answers:
        """The answers to consecutive lines, in order."""
        raise NotImplementedError


def to_stderr(text: str) -> None:
    """Prints a line on standard error."""
    print(text, file=sys.stderr, flush=True)


def window_size(loaded: "TrainedModel") -> int:
    """Lines of a full window."""
    from t2t_flax.distributed import mesh as mesh_lib

    rows = loaded.config.decode.batch_size * mesh_lib.batch_shards(loaded.mesh)
    return rows * min(WINDOW_BATCHES, max(8, WINDOW_LINES // rows))


def answer_windows(
    answering: Answering,
    windows: Iterator[list[Line]],
    write: Callable[[list[Line], str], None],
    *,
    after_batch: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = to_stderr,
) -> None:
    """Answers windows of consecutive lines one after the other and calls write(lines, answers), which end in line breaks, for
    each. after_batch() is called after each batch; it may raise.
    """
    notes, progress = _Notes(), _Progress(answering.verb, say)
    answering.introduce(say)

    def report(done: int, total: int) -> None:
        after_batch()
        progress.update(done)

    for window in windows:
        answers = answering.answer(window, report)
        write(window, answers.text)
        notes.add(len(window), answers.notes)
        progress.end_window(len(window))
    notes.show(say)


class _Progress:
    """A line every ten seconds."""

    def __init__(self, verb: str, say: Callable[[str], None]):
        self._verb, self._say = verb, say
        self._began = self._last = time.monotonic()
        self._before = 0

    def update(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last >= PROGRESS_SECONDS:
            self._last, lines = now, self._before + done
            self._say(f"{self._verb} {lines:,} lines, {lines / (now - self._began):.1f} lines/s")

    def end_window(self, lines: int) -> None:
        self._before += lines


class _Notes:
    """How many lines each event happened to, with the first of them."""

    def __init__(self):
        self._lines = 0
        self._counts: dict[str, tuple[int, list[str]]] = {}

    def add(self, lines: int, notes: list[Note]) -> None:
        self._lines += lines
        for event, number, more in notes:
            count, first = self._counts.get(event, (0, []))
            shown = [f"{number + 1}{f' ({more})' if more else ''}"] if count < _SHOWN else []
            self._counts[event] = count + 1, first + shown

    def show(self, say: Callable[[str], None]) -> None:
        for event, (count, first) in self._counts.items():
            shown = ", ".join(first) + (", ..." if count > len(first) else "")
            say(f"warning: {count} of {self._lines} lines {event}: line {shown}")
