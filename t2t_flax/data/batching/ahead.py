"""Lays out windows when they are needed; an extension lays them out ahead, see `registry.AHEAD`."""

import contextlib
import time
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from t2t_flax.registry import AHEAD


class _Window(Protocol):
    @property
    def updates(self) -> int: ...


Window = TypeVar("Window", bound=_Window)
Window_co = TypeVar("Window_co", bound=_Window, covariant=True)


class LaysOut(Protocol[Window_co]):
    """A picklable function of the number of a window."""

    def lay_out(self, window: int) -> Window_co: ...


class Ahead(Generic[Window]):
    """Windows as they are needed. seconds: CPU seconds that the layout of an update takes, of the last window."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def in_processes(self, most: int) -> Iterator[None]:
        """Within the block, windows that follow may be laid out in up to `most` processes while one is used."""
        yield

    def window(self, layouter: LaysOut[Window], number: int, known: tuple[Window, float] | None = None) -> Window:
        """A window of `layouter`. known: the window, where it is known, with its CPU seconds. Called in one thread at a time."""
        window, seconds = known or timed(layouter, number)
        self.seconds = seconds / window.updates
        return window


def timed(layouter: LaysOut[Window], number: int) -> tuple[Window, float]:
    """A window, and the CPU seconds that its layout took."""
    began = time.thread_time()
    return layouter.lay_out(number), time.thread_time() - began


def make_ahead() -> Ahead:
    """That of an extension, if there is one."""
    return next(AHEAD.load_all(), Ahead)()
