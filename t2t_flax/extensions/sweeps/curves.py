"""Curves of runs and sweeps, from the lines of metrics.jsonl. Does not import JAX."""

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.folder import Folder, read_sweep
from t2t_flax.files import check_reachable
from t2t_flax.tasks import model_metrics
from t2t_flax.training.progress import read_metrics

Metrics = list[dict[str, Any]]
"""Lines of a metrics.jsonl."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """A run, or a row of a sweep with a run for each seed."""

    label: str
    runs: tuple[Metrics, ...]

    @property
    def names(self) -> list[str]:
        """Names of the metrics that are numbers, in the order of the file."""
        values = (item for lines in self.runs for line in lines for item in line.items())
        return list(dict.fromkeys(name for name, x in values if name != "step" and _is_number(x)))

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (steps [N], values [runs, N]) of a metric, at the steps that all runs have."""
        found = [
            {line["step"]: float(line[name]) for line in lines if _is_number(line.get(name))}
            for lines in self.runs
        ]
        steps = sorted(set(found[0]).intersection(*found[1:]))
        values = [[of_run[step] for step in steps] for of_run in found]
        return np.array(steps, int), np.array(values, float)

    @property
    def last_step(self) -> int:
        return max(line["step"] for lines in self.runs for line in lines)

    @property
    def restarts(self) -> list[int]:
        """Last logged updates before a process took over a single run.

        A process adds the time of its compilation to `seconds.compile` when it starts.
        """
        found: list[int] = []
        if len(self.runs) == 1:
            compiled = math.inf
            for before, line in zip([{"step": 0}, *self.runs[0]], self.runs[0], strict=False):
                now = line.get("seconds", {}).get("compile", compiled)
                if now > compiled:
                    found.append(before["step"])
                compiled = now
        return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_curves(names: Sequence[str]) -> tuple[list[Curve], list[str]]:
    """Return (curves of the runs and sweeps, trials that have no metrics yet).

    Raises UserError for a folder that is neither a run nor a sweep, and for one without metrics.
    """
    curves, waiting = [], []
    for name, label in zip(names, short_names(names), strict=True):
        folder = epath.Path(name)
        check_reachable(folder)
        if not (folder / "sweep.json").exists():
            curves.append(Curve(label, (_read_run(folder),)))
            continue
        rows: dict[str, list[Metrics]] = {}
        for trial, values in read_sweep(name)["trials"].items():
            if lines := read_metrics(Folder(Path(name)).workdir(trial)):
                rows.setdefault(values["row"], []).append(lines)
            else:
                waiting.append(trial)
        if not rows:
            raise UserError(f"no trial of {name} has metrics yet: wait for its first updates.")
        prefix = f"{label}/" if len(names) > 1 else ""
        curves += [Curve(prefix + row, tuple(runs)) for row, runs in rows.items()]
    return curves, waiting


def _read_run(folder: epath.Path) -> Metrics:
    path = folder / "metrics.jsonl"
    if folder.is_file() or not path.exists():
        raise UserError(f"{folder} is neither a run nor a sweep: it has no metrics.jsonl.")
    lines = read_metrics(folder)
    if not Curve("", (lines,)).names:
        raise UserError(f"{path} has no metrics yet: wait for the first config.log.every_steps.")
    return lines


def short_names(names: Sequence[str]) -> list[str]:
    """Return the names without their common folders and the end of a record's name."""
    parts = [Path(os.path.abspath(name)).parts for name in names]
    shared = len(os.path.commonprefix([of_name[:-1] for of_name in parts]))
    return [os.path.join(*of_name[shared:]).removesuffix(".json") for of_name in parts]


def smoothed(steps: np.ndarray, values: np.ndarray, window: int) -> np.ndarray:
    """Return means of `values` [..., N] over the steps within `window` updates around each step.

    Values that are not finite stay, and count for no mean.
    """
    finite = np.isfinite(values)
    low = np.searchsorted(steps, steps - window / 2, "left")
    high = np.searchsorted(steps, steps + window / 2, "right")

    def sums(x: np.ndarray) -> np.ndarray:
        total = np.concatenate([np.zeros_like(x[..., :1]), x.cumsum(-1)], -1)
        return total[..., high] - total[..., low]

    counts = sums(finite.astype(float))
    means = sums(np.where(finite, values, 0.0)) / np.maximum(counts, 1)
    return np.where(finite, means, values)


def default_window(curves: Iterable[Curve]) -> int:
    """Return the updates of a mean by default: a fortieth of the longest run."""
    return max(1, max(curve.last_step for curve in curves) // 40)


def default_metrics(curves: Iterable[Curve]) -> list[str]:
    """Return loss, score of translations, learning rate and speed, as far as a run has them."""
    names = dict.fromkeys(name for curve in curves for name in curve.names)
    of_model = {f"valid_{metric.training_name}" for metric in model_metrics()}
    scores = [n for n in names if n.startswith("valid_") and "/" not in n and n not in of_model]
    loss = "loss" if "loss" in names else "valid_loss"
    wanted = [loss, *scores[:1], "learning_rate", "target_tokens_per_second"]
    return [name for name in wanted if name in names] or [*names][:1]
