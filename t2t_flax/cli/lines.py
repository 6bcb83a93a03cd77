"""Read lines of an input in windows and answer them in order.

Memory stays bounded, and a pipe is answered before it ends.
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

from t2t_flax.data.compression import form_of
from t2t_flax.distributed.signals import on_stop_signals
from t2t_flax.errors import OK, USER_ERROR, UserError
from t2t_flax.files import atomic_file

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel

PAUSE = 0.05
"""Seconds without another line after which `windows` yields lines of a live input."""
WINDOW_BATCHES = 128
"""Maximum batches in a window.

Lines are read, sorted by length and answered in windows.
"""
WINDOW_LINES = 2**14
"""Maximum lines in a window, unless 8 batches have more."""
PROGRESS_SECONDS = 10.0
_SHOWN = 10


def iterate_lines(name: str, *, checked: bool = True) -> Iterator[str]:
    """Yield the lines of a file, a pipe, or standard input for "-", as they are read.

    Splits at newlines only. Raises UserError at once for a file that cannot be opened, and at the
    line for invalid UTF-8.

    Args:
        checked: False keeps bytes that are not UTF-8 in the text, where `check_text` finds them.
    """
    if name != "-" and not Path(name).exists():
        raise UserError(f"no file {name}.")
    if Path(name).is_dir():
        raise UserError(f"{name} is a folder; name a file of lines.")
    try:
        return _decoded(_standard_input() if name == "-" else open(name, "rb"), name, checked)
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}.") from None


def _standard_input() -> BinaryIO:
    """Open standard input with its own buffer.

    A buffer that another thread holds at exit would abort the interpreter.
    """
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except (OSError, ValueError):  # replaced by an object without a file
        return sys.stdin.buffer


def check_text(text: str, advice: str = "Convert the text.") -> None:
    """Raise UserError for a byte that is not UTF-8, and for half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = len(text[: error.start].encode("utf-8", "surrogateescape")) + 1
        value = ord(text[error.start])
        shown = f"0x{value - 0xDC00:02x}" if 0xDC80 <= value <= 0xDCFF else f"U+{value:04X}"
        raise UserError(f"byte {byte}: {shown} is not UTF-8. {advice}") from None


def _decoded(file: BinaryIO, name: str, checked: bool) -> Iterator[str]:
    where = "standard input" if name == "-" else name
    try:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")
            form = form_of(line) if number == 1 else ""
            if checked or form:
                try:
                    check_text(
                        text, f"It is {form} data: decompress it." if form else "Convert the text."
                    )
                except UserError as error:
                    raise UserError(f"{where} line {number}, {error}") from None
            if line:
                yield text
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror}.") from None
    finally:
        if file is not sys.stdin.buffer:
            file.close()


def check_read_once(*names: str | None) -> None:
    """Raise UserError if two of the files are the same pipe.

    A pipe can be read only once.
    """
    real = [os.path.realpath("/dev/stdin" if name == "-" else name) for name in names if name]
    for name in set(real):
        if real.count(name) > 1 and (names.count("-") > 1 or not os.path.isfile(name)):
            raise UserError(
                f"{' and '.join(filter(None, names))} are the same pipe, which can be read only"
                " once: use a file."
            )


def is_stream(name: str) -> bool:
    """Return whether the output is standard output ("-"), a pipe or a device."""
    return name == "-" or os.path.exists(name) and not os.path.isfile(name)


@contextlib.contextmanager
def open_output(name: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that appends text to standard output ("-") or a file.

    A stream gets the text at once. A file gets its name when the block ends without an error.
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
    """Line of the input, counted from 0, and the line beside it in another file.

    The other line is, for example, the forced beginning of the translation.
    """

    number: int
    text: str
    beside: str | None = None


def paired(
    lines: Iterator[str],
    beside: Iterator[str] | None,
    names: tuple[str, str | None],
    expected: str = "expected one prefix (possibly empty) per line",
) -> Iterator[Line]:
    """Yield each line with the line of the same number in `beside`.

    Raises UserError after the last pair if the counts differ.

    Args:
        names: names of both files, for the message with both counts, names[0] first.
        expected: the expectation, for the message.
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


def windows(
    lines: Iterator[Line],
    size: int,
    *,
    live: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Iterator[list[Line]]:
    """Yield lists of `size` consecutive lines, shorter at the end.

    A thread reads at most 2 x `size` lines ahead. Exceptions of `lines` are raised after the lines
    before them.

    Args:
        live: also yield when no further line has come for `PAUSE` seconds.
        check: called while lines are awaited; it may raise.
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
            item = arrived.get(timeout=PAUSE)
        except queue.Empty:
            check()
            if live and window:
                yield window
                window = []
            continue
        check()
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
    """Return whether the file ("-": standard input) is a terminal, a pipe or a socket."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if name == "-" else os.stat(name).st_mode
    except (OSError, ValueError):  # not a file of the operating system
        return False
    return not stat.S_ISREG(mode)


FAILED = "cannot be translated and are left empty"
"""Event of a failed line.

The command ends with `USER_ERROR` once all others are answered.
"""


class Note(NamedTuple):
    """Event at a line, counted from 0, and more about it."""

    event: str
    number: int
    more: str = ""


Answer = Callable[[list[Line], Callable[[int, int], None]], tuple[str, list[Note]]]
"""(consecutive lines, progress) -> (their output, in order, and notes on them).

progress(lines done, total) is called after each batch.
"""


def window_size(loaded: "TrainedModel") -> int:
    """Return the number of lines in a full window."""
    from t2t_flax.distributed import mesh as mesh_lib

    rows = loaded.config.decode.batch_size * mesh_lib.batch_shards(loaded.mesh)
    return rows * min(WINDOW_BATCHES, max(8, WINDOW_LINES // rows))


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def answer_windows(
    verb: str,
    answer: Answer,
    windows: Iterator[list[Line]],
    write: Callable[[list[Line], str, int], None],
    *,
    check: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = to_stderr,
) -> int:
    """Answer windows one after the other; say at the end which lines have which note.

    Args:
        verb: past participle in progress reports, such as "translated".
        write: called for each window with its lines, their output, and the number of lines with the
            note `FAILED`.
        check: called after each batch; it may raise.
        say: prints progress and warnings.

    Returns:
        The exit code.
    """
    began = said = time.monotonic()
    before = 0
    counts: dict[str, int] = {}
    shown: dict[str, list[str]] = {}

    def progress(done: int, total: int) -> None:
        nonlocal said
        check()
        if (now := time.monotonic()) - said >= PROGRESS_SECONDS:
            said, lines = now, before + done
            say(f"{verb} {lines:,} lines, {lines / (now - began):.1f} lines/s")

    try:
        for window in windows:
            output, notes = answer(window, progress)
            write(window, output, sum(note.event == FAILED for note in notes))
            before += len(window)
            for note in notes:
                counts[note.event] = counts.get(note.event, 0) + 1
                if counts[note.event] <= _SHOWN:
                    place = (
                        f"{note.number + 1} ({note.more})" if note.more else f"{note.number + 1}"
                    )
                    shown.setdefault(note.event, []).append(place)
    finally:
        for event, places in shown.items():
            more = ", ..." if counts[event] > _SHOWN else ""
            say(
                f"warning: {counts[event]} of {before} lines {event}: line"
                f" {', '.join(places)}{more}"
            )
    return USER_ERROR if FAILED in counts else OK


class Signalled(BaseException):
    """Signal to stop. Not an Exception, so that no handler in between catches it."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], None]]:
    """Yield a function that raises `Signalled` after SIGINT, SIGTERM or SIGHUP.

    A second signal raises it at once. The first does not, because JAX loses an exception that is
    raised in its callbacks.
    """
    came: list[int] = []

    def handle(number: int) -> None:
        if number == signal.SIGHUP and came:  # the end of a login session sends SIGTERM and SIGHUP
            return
        came.append(number)
        if len(came) > 1:
            raise Signalled(number)

    def check() -> None:
        if came:
            raise Signalled(came[0])

    with on_stop_signals(handle):
        yield check
