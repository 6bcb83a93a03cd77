"""Progress bar, timers and metrics.jsonl of a run."""

import collections
import contextlib
import dataclasses
import datetime
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import rich.console
import rich.progress
from etils import epath

from t2t_flax.data.batching.rows import HostBatch
from t2t_flax.data.progress import Report
from t2t_flax.files import atomic_write, dispatch_by_storage


class ProgressBar:
    """Progress bar. `update` moves it; `say` prints a line above it.

    The bar shows the step, free text and the remaining time.

    Args:
        total: number of steps; None = unknown.
        unit: name of the steps; "" for work without steps.
        quiet: show nothing.
        eta: show the remaining time; False where the work so far does not predict it.
    """

    def __init__(
        self,
        name: str,
        total: int | None,
        *,
        start: int = 0,
        unit: str = "updates",
        quiet: bool = False,
        eta: bool = True,
    ):
        self._console = rich.console.Console(
            stderr=False, highlight=False, soft_wrap=True, quiet=quiet
        )
        self._live = self._console.is_terminal
        self._name, self._total, self._start, self._unit, self._eta_known = (
            name,
            total,
            start,
            unit,
            eta,
        )
        self._last_line = float("-inf")
        # (time, steps) at the last lines: the first update takes longer, as it is compiled.
        self._recent = collections.deque([(time.monotonic(), start)], maxlen=7)
        columns = [
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=20),
            rich.progress.TextColumn("{task.fields[amount]}"),
            rich.progress.TextColumn("{task.fields[text]}"),
        ] + [rich.progress.TimeRemainingColumn(compact=True)] * eta
        self._bar = rich.progress.Progress(*columns, console=self._console, disable=not self._live)

    def __enter__(self):
        self._bar.start()
        self._task = self._bar.add_task(
            self._name,
            total=self._total,
            completed=self._start,
            text="",
            amount=self._amount(self._start),
        )
        return self

    def __exit__(self, *error):
        self._bar.stop()

    def update(
        self, done: int, text: str = "", *, total: int | None = None, line_every: float = 10.0
    ) -> None:
        """Move the bar. Without a terminal, print a line now and then.

        Args:
            total: new total, if it has become known.
            line_every: seconds between two lines, at least.
        """
        self._total = total or self._total
        self._bar.update(
            self._task, completed=done, total=self._total, text=text, amount=self._amount(done)
        )
        now = time.monotonic()
        if not self._live and (now - self._last_line >= line_every or done == self._total):
            self._last_line = now
            count = f" {self._amount(done)} {self._unit}" if self._unit and done else ""
            self.say(f"{self._name}{count}  {text}{self._eta(done, now)}".rstrip())
            self._recent.append((now, done))

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False)
        sys.stdout.flush()

    def _amount(self, done: int) -> str:
        return f"{done:,}/{self._total:,}" if self._total else f"{done:,}" if self._unit else ""

    def _eta(self, done: int, now: float) -> str:
        if not self._eta_known or not self._total or done <= self._start or done >= self._total:
            return ""
        began, before = self._recent[0]
        left = (now - began) / max(1, done - before) * (self._total - done)
        return f"  ETA {datetime.timedelta(seconds=int(left))}"


@contextlib.contextmanager
def bars(*, quiet: bool = False, eta: bool = True) -> Iterator[Report]:
    """Show progress bars, one at a time; `bar(name, done, total, unit)` moves one."""
    with contextlib.ExitStack() as stack:
        shown: dict[str, ProgressBar] = {}

        def bar(name: str, done: int, total: int | None, unit: str) -> None:
            if name not in shown:
                stack.close()
                shown.clear()
                shown[name] = stack.enter_context(
                    ProgressBar(name, total, start=done, unit=unit, quiet=quiet, eta=eta)
                )
            shown[name].update(done, total=total)

        yield bar


def seconds_since_start() -> float:
    """Return the age of this process.

    On Linux it is computed from numbers that count from the boot. psutil would add the time of the
    boot, which moves with the wall clock.
    """
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return time.time() - psutil.Process().create_time()
    # Field 22 of proc(5). The process name before ")" may contain spaces.
    start = stat.read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(start) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def measure(bucket: str, seconds: dict[str, float]) -> Iterator[None]:
    """Add the time of the block to a bucket of `seconds`, see `TrainProgress`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[bucket] = seconds.get(bucket, 0.0) + time.perf_counter() - start


@dataclasses.dataclass
class Throughput:
    """Speed of the updates since the last line of metrics.jsonl.

    Counts target tokens, token slots and seconds.
    """

    seconds: dict[str, float]
    """Seconds by bucket, see `measure`."""
    since: float = 0.0
    tokens: int = 0
    slots: int = 0

    def restart(self) -> None:
        """Count from now on."""
        self.since, self.tokens, self.slots = self._busy(), 0, 0

    def add(self, batch: HostBatch) -> None:
        """Count an update."""
        self.tokens += batch.target_tokens
        self.slots += batch.shape.slots

    def _busy(self) -> float:
        return sum(self.seconds.get(bucket, 0.0) for bucket in ("step", "data"))

    @property
    def tokens_per_second(self) -> float:
        """Target tokens per second of training, waits for data included."""
        return self.tokens / max(self._busy() - self.since, 1e-9)

    def __str__(self) -> str:
        return f"{self.tokens_per_second:,.0f} tok/s  fill {self.tokens / self.slots:.0%}"

    def describe(self, batch: HostBatch) -> dict[str, float]:
        """Return the speed and facts on the last batch for a line of metrics.jsonl."""
        return {
            "epoch": batch.epoch,
            "source_tokens": batch.source_tokens,
            "target_tokens": batch.target_tokens,
            "target_tokens_per_second": self.tokens_per_second,
            "fill": batch.fill,
        }


log = logging.getLogger("t2t_flax")


class MetricsWriter:
    """Writer that appends lines to WORKDIR/metrics.jsonl.

    Lines after `resume_step` are dropped, so that the file of a resumed run reads as if the run had
    never stopped. `open_growing_files` decides where the file grows.

    Args:
        evaluation_pending: also drop the evaluation of `resume_step`, which will be repeated.
    """

    def __init__(self, workdir: epath.Path, *, resume_step: int, evaluation_pending: bool = False):
        workdir = epath.Path(workdir)
        # The resumed run repeats the lines that followed the checkpoint at `resume_step`: a change
        # of the config, and an evaluation that the checkpoint does not include.
        rewritten = ("config_changed", *(("valid_",) if evaluation_pending else ()))
        kept = [
            line
            for line in read_metrics(workdir)
            if line["step"] < resume_step
            or line["step"] == resume_step
            and not any(key.startswith(rewritten) for key in line)
        ]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        self._files = open_growing_files(workdir)
        path = epath.Path(self._files.local) / "metrics.jsonl"
        if not path.exists() or path.read_bytes() != text.encode():
            atomic_write(path, text)
        self._file = path.open("a")

    def write(self, step: int, values: Mapping[str, object]) -> None:
        """Append the line {"step": step, ...}."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()

    def send(self) -> None:
        """Wait until the lines so far are stored."""
        self._files.send()

    def close(self) -> None:
        self._file.close()
        self._files.close()


def read_metrics(workdir: str | epath.Path) -> list[dict[str, Any]]:
    """Read the lines of WORKDIR/metrics.jsonl.

    A last line that a kill has cut is left out. Damaged lines are left out with a warning.
    """
    path, valid, damaged = epath.Path(workdir) / "metrics.jsonl", [], []
    try:
        lines = path.read_bytes().decode(errors="replace").split("\n")
    except FileNotFoundError:
        return []
    for number, line in enumerate(lines[:-1], 1):
        try:
            values = json.loads(line) if line else None
        except (ValueError, RecursionError):
            values = {}
        if isinstance(values, dict) and isinstance(values.get("step"), int):
            valid.append(values)
        elif line:
            damaged.append(number)
    if damaged:
        log.warning(
            "%s: %d lines are damaged and left out, the first is line %d",
            path,
            len(damaged),
            damaged[0],
        )
    return valid


class GrowingFiles:
    """Growing files of a workdir on disk: `local` is the workdir itself."""

    def __init__(self, workdir: epath.Path):
        self.local = Path(workdir)

    def send(self) -> None:
        """Nothing to flush."""

    def close(self) -> None:
        """Nothing to flush."""


@dispatch_by_storage
def open_growing_files(workdir: epath.Path) -> GrowingFiles:
    """Return the place where files of a workdir can grow, in its folder `local`."""
    return GrowingFiles(workdir)
