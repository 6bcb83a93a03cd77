"""What a tracker is told of a run, and what it has to do.

To add one: a class like `tensorboard.TensorBoard`, its row in `threads.TRACKERS`, and its name in `keys.NAMES`.
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.extensions.trackers.keys import Trackers
from t2t_flax.monitoring.metrics_writer import read_metrics
from t2t_flax.process_setup import RUNS_FOLDER

PROJECT = "t2t_flax"
FINISH_SECONDS = 30.0
"""How long a client may take to send the rest at the end."""
FLUSH_SECONDS = 1.0
"""How long a client may hold values itself: a kill (SIGKILL) loses them."""


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run as trackers see it. folder: where local files go, the workdir or the local copy of one in an object store.
    resume_step: the last update that is not repeated.
    """

    workdir: epath.Path
    folder: Path
    config: Config
    resume_step: int

    @property
    def name(self) -> str:
        return self.workdir.name or PROJECT

    @property
    def runs_folder(self) -> Path | None:
        """The folder of the runs that this one is compared with, such as a sweep."""
        return Path(os.environ[RUNS_FOLDER]) if os.environ.get(RUNS_FOLDER) else None

    @property
    def group(self) -> str | None:
        return Trackers.of(self.config).group or (self.runs_folder.name if self.runs_folder else None)

    def earlier_lines(self) -> list[dict[str, Any]]:
        """What metrics.jsonl has of the updates that are not repeated."""
        return [line for line in read_metrics(self.workdir) if line["step"] <= self.resume_step]

    def settings(self) -> dict[str, Any]:
        """The whole config by dotted keys: of a sweep's trial, its overrides are among them."""
        groups = {group: keys for group, keys in config_lib.as_json(self.config).items() if isinstance(keys, dict)}
        return {f"{group}.{key}": value for group, keys in groups.items() for key, value in keys.items()}


class Tracker(Protocol):
    """An open run of a tracker, made by (`TrackedRun`, id of its earlier part or ""), which imports the client: that may take
    its time and may fail.

    modules: what the client's extra installs. purges: drops what lies after the resume step by itself. id: by which the run is
    opened again. place: what to tell the user.
    """

    modules: Sequence[str]
    purges: bool
    id: str
    place: str

    def write(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...
