"""The progress bar of a run: live on a terminal, plain lines elsewhere."""

import sys
import time

import rich.console
import rich.progress


class Progress:
    """`update` shows the step, free text and the remaining time; `say` prints a line above the bar.

    `quiet`: show nothing. `eta`: show the remaining time, where the work so far predicts it.
    """

    def __init__(
        self, name: str, total: int | None, *, start: int = 0, unit: str = "updates", quiet: bool = False, eta: bool = True
    ):  # fmt: skip
        self._console = rich.console.Console(stderr=False, highlight=False, soft_wrap=True, quiet=quiet)
        self._live = self._console.is_terminal
        self._name, self._total, self._start, self._unit, self._eta_known = name, total, start, unit, eta
        self._began, self._last_line = time.monotonic(), float("-inf")
        columns = [
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=20),
            rich.progress.TextColumn("{task.completed:.0f}/{task.total:.0f}" if total else "{task.completed:.0f}"),
            rich.progress.TextColumn("{task.fields[text]}"),
        ] + [rich.progress.TimeRemainingColumn(compact=True)] * eta
        self._bar = rich.progress.Progress(*columns, console=self._console, disable=not self._live)

    def __enter__(self):
        self._bar.start()
        self._task = self._bar.add_task(self._name, total=self._total, completed=self._start, text="")
        return self

    def __exit__(self, *error):
        self._bar.stop()

    def update(self, done: int, text: str = "", *, line_every: float = 10.0) -> None:
        """Moves the bar. Without a terminal it prints a line, at most every `line_every` seconds."""
        self._bar.update(self._task, completed=done, text=text)
        now = time.monotonic()
        if not self._live and (now - self._last_line >= line_every or done == self._total):
            self._last_line = now
            total = f"/{self._total:,}" if self._total else ""
            self.say(f"{self._name} {done:,}{total} {self._unit}  {text}{self._eta(done, now)}".rstrip())

    def say(self, text: str) -> None:
        """Prints a line."""
        self._console.print(text, markup=False)
        sys.stdout.flush()

    def say_if(self, text: str | None) -> None:
        if text:
            self.say(text)

    def _eta(self, done: int, now: float) -> str:
        if not self._eta_known or not self._total or done <= self._start or done >= self._total:
            return ""
        left = (now - self._began) / (done - self._start) * (self._total - done)
        return f"  ETA {int(left // 60)}:{int(left % 60):02d}"
