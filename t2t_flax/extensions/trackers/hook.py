"""Senders of metrics to the trackers of a run, each in a separate thread.

Neither opening a tracker nor a slow disk or a dead network makes the training loop wait. A tracker
that fails is reported once and dropped.

WORKDIR/trackers/NAME.json notes the lines that were sent, so that a resumed run continues the
tracker's run: it sends the missing ones and repeats nothing. A run that starts over is a new one of
the tracker.
"""

import json
import logging
import queue
import threading
import time
from typing import Any

from etils import epath

from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import first_line
from t2t_flax.extensions.trackers import Trackers
from t2t_flax.extensions.trackers.clients import (
    CLIENTS,
    FINISH_SECONDS,
    PURGING,
    TrackedRun,
)
from t2t_flax.files import atomic_write, read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.training.hooks import Hook
from t2t_flax.training.parts import TrainingSetup, TrainProgress
from t2t_flax.training.progress import open_growing_files, read_metrics

CLOSE_SECONDS = FINISH_SECONDS
"""Seconds that the end of a run waits for all trackers together."""
LOG = logging.getLogger("t2t_flax")


class TrackerThread:
    """Thread that hands lines to one tracker.

    It first sends the run's earlier lines that the tracker lacks.
    """

    def __init__(self, name: str, run: TrackedRun):
        self.name, self._run, self._open = name, run, CLIENTS[name]
        self._queue: queue.SimpleQueue[tuple[int, dict[str, float]] | None] = queue.SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._work, daemon=True, name=f"tracker-{name}")
        self._thread.start()

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Queue the numbers among the values."""
        if not self._ended and (numbers := _numbers(values)):
            self._queue.put((step, numbers))

    def end(self) -> None:
        """Tell the thread that nothing follows."""
        self._queue.put(None)

    def join(self, seconds: float) -> None:
        """Wait until everything is sent, at most `seconds`."""
        self._thread.join(max(seconds, 0.0))
        if self._thread.is_alive() and not self._ended:
            self._ended = True
            LOG.warning(
                "%s has not taken everything in %g s; the rest is left out",
                self.name,
                CLOSE_SECONDS,
            )

    def _work(self) -> None:
        try:
            self._send_all()
        except BaseException as error:  # noqa: BLE001 - whatever a client raises, the run goes on
            if not self._ended:
                LOG.warning(
                    "%s failed and is dropped; metrics.jsonl has all values: %s",
                    self.name,
                    first_line(error),
                )
        self._ended = True

    def _send_all(self) -> None:
        run, notes, purges = self._run, f"trackers/{self.name}.json", self.name in PURGING
        stored = {} if purges or not run.resume_step else _read_notes(run.workdir / notes)
        tracker = self._open(run, stored.get("id", ""))
        sent: dict[str, int] = stored["sent"] if stored and tracker.id == stored["id"] else {}
        if tracker.place:
            print(f"{self.name}: {tracker.place}", flush=True)

        def note() -> None:
            if not purges:
                text = json.dumps({"id": tracker.id, "sent": sent}) + "\n"
                atomic_write(epath.Path(run.folder) / notes, text)

        def send(step: int, values: dict[str, float]) -> None:
            if new := {name: value for name, value in values.items() if step > sent.get(name, -1)}:
                tracker.write(step, new)
                if not purges:
                    sent.update(dict.fromkeys(new, step))

        for line in () if purges else read_metrics(run.workdir):
            if line["step"] <= run.resume_step:
                send(line.pop("step"), _numbers(line))
        note()
        while (item := self._queue.get()) is not None:
            send(*item)
            note()
        tracker.close()


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {
        k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)
    }


def _read_notes(path: epath.Path) -> dict[str, Any]:
    """Return the notes on a tracker's run; nothing if the file is missing or damaged."""
    try:
        notes = parse_json(read_if_exists(path) or "{}")
        return notes if isinstance(notes["id"], str) and isinstance(notes["sent"], dict) else {}
    except (ValueError, LookupError, TypeError):
        return {}


def hooks(setup: TrainingSetup, progress: TrainProgress, group: ProcessGroup) -> list[Hook]:
    """Return hooks of process 0 that send metrics and test scores.

    Metrics are the lines of metrics.jsonl.
    """
    if not group.is_lead:
        return []
    files = open_growing_files(setup.workdir)
    tracked = TrackedRun(setup.workdir, files.local, setup.config, progress.step)
    threads = [TrackerThread(name, tracked) for name in Trackers.of(setup.config).each()]

    def log(step: int, values: dict[str, Any]) -> None:
        for thread in threads:
            thread.write(step, values)

    def end(step: int, scores: dict[str, float]) -> None:
        log(step, scores)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.end()
        for thread in threads:
            thread.join(deadline - time.monotonic())
        try:
            files.close()
        except Exception as error:  # noqa: BLE001 - any of dozens of network errors; metrics.jsonl and the records have all
            LOG.warning(
                "the trackers' files could not be written to %s: %s",
                setup.workdir,
                first_line(error),
            )

    return [Hook("log", log), Hook("end", end)]
