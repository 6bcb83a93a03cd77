"""Times the first evaluation at which eval.metric is at least as good as algoperf.target.

The clock is AlgoPerf's (docs/DOCUMENTATION.md, "Scoring"; submission_runner.py): waiting for data, updates and compilation
count; initialization, evaluations, checkpoints and logs do not. Here all programs are compiled before the first update, so that
those of the validation loss and of checkpoints count too. As there, the clock of a resumed run goes on from its checkpoint's.
"""

import json
import math
from typing import Any

from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.schema import HIGHER_IS_BETTER
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import UserError
from t2t_flax.extensions.algoperf import AlgoPerf
from t2t_flax.filesystem import atomic_write
from t2t_flax.tasks import NAMES_IN_RECORDS, lower_is_better
from t2t_flax.training.hooks import Hook
from t2t_flax.training.setup import DeviceBatch, TrainingSetup
from t2t_flax.training.train_state import TrainProgress

FILE = "time_to_target.json"
"""Of a workdir: metric, target, the evaluation that reached it (null: none) and the last one."""
BUCKETS = ("compile", "data", "step")
"""Of `TrainProgress.seconds`, those that AlgoPerf's clock counts."""


class TimeToTarget(Hook):
    """Keeps `target_tokens` so far, and the evaluations `reached` and `last`, in `TrainProgress.of_hooks`."""

    def __init__(self, config: Config, workdir: epath.Path, group: ProcessGroup):
        self._keys, self._metric = AlgoPerf.of(config), config.eval.metric
        self._path = workdir / FILE if group.is_lead else None

    def on_start(self, run: TrainingSetup, progress: TrainProgress) -> None:
        self._seconds = progress.seconds
        self._kept = progress.of_hooks.setdefault("algoperf", {"target_tokens": 0, "reached": None, "last": None})
        self._note()

    def on_update(self, step: int, batch: DeviceBatch, values: dict[str, Any]) -> None:
        self._kept["target_tokens"] += batch.batch.target_tokens

    def on_evaluation(self, step: int, values: dict[str, float]) -> None:
        value = values.get(f"valid_{self._metric}", math.nan)
        if math.isnan(value):
            return
        values["training_seconds"] = round(sum(self._seconds.get(bucket, 0.0) for bucket in BUCKETS), 3)
        self._kept["last"] = {
            "update": step,
            "target_tokens": self._kept["target_tokens"],
            "seconds": values["training_seconds"],
            "compile_seconds": round(self._seconds.get("compile", 0.0), 3),
            "value": value,
        }
        target = self._keys.target
        if self._kept["reached"] is None and (value <= target if lower_is_better(self._metric) else value >= target):
            self._kept["reached"] = self._kept["last"]
        self._note()

    def _note(self) -> None:
        """Writes the file, and ends the run if it is to end."""
        if self._keys.stop and self._kept["reached"]:
            self.ended_by = "algoperf.stop"
        if self._path:
            outcome = {name: self._kept[name] for name in ("reached", "last")}
            text = json.dumps({"metric": self._metric, "target": self._keys.target} | outcome, indent=2)
            atomic_write(self._path, text + "\n")


def hook(config: Config, workdir: epath.Path, group: ProcessGroup) -> Hook:
    """The hook of a run with algoperf.target."""
    return TimeToTarget(config, workdir, group)


def check_installed(config: Config) -> None:
    """Raises UserError where eval.metric is never computed, or not for the test set."""
    e = config.eval
    if (
        AlgoPerf.of(config).test_target is not None
        and e.metric in HIGHER_IS_BETTER
        and e.metric not in NAMES_IN_RECORDS
    ):
        raise UserError(
            f"config.algoperf.test_target is one of eval.metric = {e.metric}, which is not computed for the test set: choose "
            f"{', '.join(NAMES_IN_RECORDS)} or a metric of translations."
        )
    decoded = e.metric not in HIGHER_IS_BETTER
    if not config.data.valid or not (e.decode_every_steps if decoded else e.every_steps or e.every_epochs):
        needed = "eval.decode_every_steps" if decoded else "eval.every_steps or eval.every_epochs"
        raise UserError(
            f"config.algoperf.target is one of eval.metric = {e.metric}, which is never computed: set config.data.valid and "
            f"{needed}."
        )
