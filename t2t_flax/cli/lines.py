"""Lines in, lines out: reads an input in windows and answers them in order. Memory stays bounded, and a pipe is answered before
it ends.
"""

import codecs
import contextlib
import os
import queue
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_file

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel

PAUSE = 0.05
"""Seconds without another line after which `arriving_windows` yields what it has."""
WINDOW_BATCHES = 128
"""Lines are read, sorted by length and answered in windows of this many batches, ..."""
WINDOW_LINES = 2**14
"""... but of at least 8 batches and otherwise of at most this many lines."""
PROGRESS_SECONDS = 10.0
_SHOWN = 10


def iterate_lines(name: str) -> Iterator[str]:
    """Lines of a file or a pipe, or of standard input for "-", as they are read; split at newlines only. Raises UserError
    at once for a file that cannot be opened, and at the line for invalid UTF-8.
    """
    if name != "-" and not Path(name).exists():
        raise UserError(f"no file {name}.")
    if Path(name).is_dir():
        raise UserError(f"{name} is a folder; name a file of lines.")
    try:
        return _decoded(_standard_input() if name == "-" else open(name, "rb"), name)
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}.") from None


def _standard_input() -> BinaryIO:
    """Standard input with a buffer of its own: one that another thread holds at exit would abort the interpreter."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except (OSError, ValueError):  # replaced by an object without a file
        return sys.stdin.buffer


def _decoded(file: BinaryIO, name: str) -> Iterator[str]:
    where = "standard input" if name == "-" else name
    try:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            try:
                if line:
                    yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{where} line {number}, byte {error.start + 1}: 0x{line[error.start]:02x} is not UTF-8. Convert the text."
                ) from None
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror}.") from None
    finally:
        if file is not sys.stdin.buffer:
            file.close()


def check_read_once(*names: str | None) -> None:
    """Raises UserError if two of the files are the same pipe, which can be read only once."""
    real = [os.path.realpath("/dev/stdin" if name == "-" else name) for name in names if name]
    for name in set(real):
        if real.count(name) > 1 and (names.count("-") > 1 or not os.path.isfile(name)):
            raise UserError(
                f"{' and '.join(filter(None, names))} are the same pipe, which can be read only once: use a file."
            )


def is_stream(name: str) -> bool:
    """Whether the output is standard output ("-"), a pipe or a device."""
    return name == "-" or os.path.exists(name) and not os.path.isfile(name)


@contextlib.contextmanager
def open_output(name: str) -> Iterator[Callable[[str], None]]:
    """A function that appends text to standard output ("-"), a pipe or a device at once, or to a file that gets its name when
    the block ends without an error.
    """
    with contextlib.ExitStack() as stack:
        if name == "-":
            file = sys.stdout.buffer
        else:
            file = stack.enter_context(open(name, "wb") if is_stream(name) else atomic_file(name))

        def write(text: str) -> None:
            file.write(text.encode())
            file.flush()

        yield write


class Line(NamedTuple):
    """A line of the input, counted from 0, and the line of another file beside it, such as the forced beginning of its
    translation.
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


class Note(NamedTuple):
    """What happened to a line, counted from 0, and more about it."""

    event: str
    number: int
    more: str = ""


class Answering:
    """How a command answers lines. verb: what progress reports, such as "translated". window: lines of a full window."""

    verb: str
    window: int

    def answer(self, window: list[Line], progress: Callable[[int, int], None]) -> tuple[str, list[Note]]:
        """The output for consecutive lines, in order, and what is to be said of them. progress(lines done, total) is called
        after each batch.
        """
        raise NotImplementedError


def window_size(loaded: "TrainedModel") -> int:
    """Lines of a full window."""
    from t2t_flax.distributed import mesh as mesh_lib

    rows = loaded.config.decode.batch_size * mesh_lib.batch_shards(loaded.mesh)
    return rows * min(WINDOW_BATCHES, max(8, WINDOW_LINES // rows))


def to_stderr(text: str) -> None:
    """Prints a line on standard error."""
    print(text, file=sys.stderr, flush=True)


def answer_windows(
    answering: Answering,
    windows: Iterator[list[Line]],
    write: Callable[[list[Line], str], None],
    *,
    after_batch: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = to_stderr,
) -> None:
    """Answers windows one after the other and calls write(lines, output) for each; says at the end which lines each note is of.
    after_batch() is called after each batch; it may raise.
    """
    began = said = time.monotonic()
    before = 0
    noted: dict[str, list[Note]] = {}
    counts: dict[str, int] = {}

    def progress(done: int, total: int) -> None:
        nonlocal said
        after_batch()
        if (now := time.monotonic()) - said >= PROGRESS_SECONDS:
            said, lines = now, before + done
            say(f"{answering.verb} {lines:,} lines, {lines / (now - began):.1f} lines/s")

    for window in windows:
        output, notes = answering.answer(window, progress)
        write(window, output)
        before += len(window)
        for note in notes:
            counts[note.event] = counts.get(note.event, 0) + 1
            if counts[note.event] <= _SHOWN:
                noted.setdefault(note.event, []).append(note)
    for event, first in noted.items():
        shown = ", ".join(f"{note.number + 1}{f' ({note.more})' if note.more else ''}" for note in first)
        more = ", ..." if counts[event] > len(first) else ""
        say(f"warning: {counts[event]} of {before} lines {event}: line {shown}{more}")


class Signalled(BaseException):
    """SIGINT or SIGTERM. Not an Exception, so that nothing between handles it."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class StopSignals:
    """Raises `Signalled` for SIGINT and SIGTERM: at once while waiting for input and at a second signal, else at the next
    `check`, because JAX loses an exception that is raised in its callbacks.
    """

    def __init__(self):
        self._number, self._waiting = 0, False

    def __enter__(self) -> "StopSignals":
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._handlers = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        first, self._number = not self._number, number
        if self._waiting or not first:
            raise Signalled(number)

    def check(self) -> None:
        """Raises `Signalled` if a signal has come."""
        if self._number:
            raise Signalled(self._number)

    def waiting(self, windows: Iterator[list[Line]]) -> Iterator[list[Line]]:
        """The windows; a signal that comes while one is awaited is raised at once."""
        while True:
            self._waiting = True
            try:
                self.check()
                window = next(windows, None)
            finally:
                self._waiting = False
            if window is None:
                return
            yield window
