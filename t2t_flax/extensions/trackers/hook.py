"""The experiment trackers of a run, as a hook of its training."""

import logging
from typing import Any

from etils import epath

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import first_line, require
from t2t_flax.extensions.trackers.keys import Trackers
from t2t_flax.extensions.trackers.threads import TRACKERS, TrackerThread, close_trackers, open_trackers
from t2t_flax.extensions.trackers.tracker import TrackedRun
from t2t_flax.monitoring.metrics_writer import GrowingFiles, open_growing_files
from t2t_flax.training.hooks import Hook
from t2t_flax.training.resume import TrainProgress
from t2t_flax.training.setup import TrainingSetup

log = logging.getLogger("t2t_flax")


class TrackersHook(Hook):
    """Sends the lines of metrics.jsonl and the scores of the test sets, from process 0."""

    def __init__(self, config: Config, workdir: epath.Path):
        self._config, self._workdir = config, workdir
        self._threads: list[TrackerThread] = []
        self._files: GrowingFiles | None = None

    def on_start(self, run: TrainingSetup | None, progress: TrainProgress) -> None:
        self._files = open_growing_files(self._workdir)
        self._threads = open_trackers(TrackedRun(self._workdir, self._files.local, self._config, progress.step))

    def on_log(self, step: int, values: dict[str, Any]) -> None:
        for thread in self._threads:
            thread.write(step, values)

    def on_checkpoint(self, step: int) -> None:
        self._upload(lambda files: files.send())

    def on_end(self, step: int, scores: dict[str, float]) -> None:
        self.on_log(step, scores)
        close_trackers(self._threads)
        self._threads = []
        self._upload(lambda files: files.close())

    def _upload(self, what: Any) -> None:
        try:
            if self._files:
                what(self._files)
        except Exception as error:  # noqa: BLE001 - any of dozens of network errors; metrics.jsonl and the records have all
            log.warning("the trackers' files could not be written to %s: %s", self._workdir, first_line(error))


def hook(config: Config, workdir: epath.Path, group: ProcessGroup) -> Hook:
    """Trackers in process 0; nothing in the others."""
    return TrackersHook(config, workdir) if group.is_lead else Hook()


def check_installed(config: Config) -> None:
    """Raises UserError if a package of a tracker is missing: before training, not after it."""
    names = Trackers.of(config)
    for name in names.each():
        for module in TRACKERS[name].modules:
            require(module, name, f"config.trackers.names = {names.names}")
