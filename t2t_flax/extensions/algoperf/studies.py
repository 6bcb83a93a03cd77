"""Scores of AlgoPerf's protocol (docs/DOCUMENTATION.md, "External Tuning Ruleset"): of each study the fastest trial to the
target, and the median over the studies. What never reaches the target takes infinitely long.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

from etils import epath

from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.extensions.algoperf import AlgoPerf
from t2t_flax.extensions.algoperf.hook import FILE
from t2t_flax.filesystem import list_names, read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.tasks import NAMES_IN_RECORDS, lower_is_better, task_of
from t2t_flax.training.workdir import MARKER, read_config

CLOCKS = {"seconds": "seconds", "updates": "update", "tokens": "target_tokens"}
"""What a score counts, and its name in `FILE`."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A run. goal: metric and target. reached: the evaluation that reached it in time, or None. test: whether its final
    evaluation reached the test target; None where there is none. ended: complete, or diverged.
    """

    algorithm: str
    study: int
    name: str
    goal: tuple[str, float]
    reached: dict[str, Any] | None
    test: bool | None = None
    ended: bool = True

    def time(self, clock: str) -> float:
        """To the target; infinite where it was not reached."""
        return float(self.reached[CLOCKS[clock]]) if self.reached else math.inf


def read_trials(folders: Sequence[str]) -> tuple[list[Trial], list[str]]:
    """(the trials in workdirs and in folders of sweeps, the names of those that have not started, or failed at their start). An
    algorithm is an optimizer; with several folders of sweeps, one of a folder. Raises UserError where there is none, and for
    trials with different targets.
    """
    trials, left_out = [], []
    for folder in map(epath.Path, folders):
        of_sweep = list_names(folder / "trials")
        workdirs = [folder / "trials" / name for name in of_sweep] or [folder]
        prefix = f"{folder.name}: " if of_sweep and len(folders) > 1 else ""
        started = [workdir for workdir in workdirs if not of_sweep or (workdir / "config.json").exists()]
        left_out += [f"{prefix}{workdir.name}" for workdir in workdirs if workdir not in started]
        trials += [_read(workdir, prefix) for workdir in started]
    if not trials:
        raise UserError(f"{', '.join(folders)}: no trial has started.")
    if different := next((t for t in trials if t.goal != trials[0].goal), None):
        first, other = (" ".join(map(str, t.goal)) for t in (trials[0], different))
        raise UserError(f"{trials[0].name} has the target {first}, {different.name} {other}: times to them differ.")
    return trials, left_out


def _read(workdir: epath.Path, prefix: str) -> Trial:
    config = read_config(workdir)
    if config is None or AlgoPerf.of(config).target is None:
        raise UserError(f"{workdir} is no run with config.algoperf.target.")
    keys, metric = AlgoPerf.of(config), config.eval.metric
    try:
        text, complete = read_if_exists(workdir / FILE), read_if_exists(workdir / "complete.json")
        reached = parse_json(text)["reached"] if text else None
        if reached and keys.max_seconds and reached["seconds"] > keys.max_seconds:
            reached = None
        records = parse_json(complete)["records"] if complete else {}
        test = None
        if keys.test_target is not None and records:
            score = _test_score(workdir / "eval" / next(iter(records.values())), config)
            test = score <= keys.test_target if lower_is_better(metric) else score >= keys.test_target
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{workdir} cannot be used ({type(error).__name__}: {error}).") from None
    ended = complete is not None or (workdir / MARKER).exists()
    return Trial(
        f"{prefix}{config.optimizer.name}", keys.study, workdir.name, (metric, keys.target), reached, test, ended
    )


def _test_score(path: epath.Path, config: Config) -> float:
    """eval.metric in a record."""
    names = {metric.training_name: metric.name for metric in task_of(config).metrics} | NAMES_IN_RECORDS
    score = parse_json(path.read_text())["scores"][names[config.eval.metric]]
    return score["score"] if isinstance(score, dict) else score


@dataclasses.dataclass(frozen=True)
class Score:
    """Of an algorithm. studies: the fastest time of each, by its number. ratio: of the score to the best algorithm's. test:
    trials that reached the test target; None without one.
    """

    algorithm: str
    score: float
    studies: dict[int, float]
    ratio: float
    reached: int
    trials: int
    test: int | None
    unfinished: int


def scores(trials: Sequence[Trial], clock: str) -> list[Score]:
    """Of each algorithm, best first. clock: of `CLOCKS`."""
    of_studies: dict[str, dict[int, float]] = {}
    for trial in trials:
        studies = of_studies.setdefault(trial.algorithm, {})
        studies[trial.study] = min(studies.get(trial.study, math.inf), trial.time(clock))
    medians = {algorithm: statistics.median(studies.values()) for algorithm, studies in of_studies.items()}
    best, found = min(medians.values()), []
    for algorithm in sorted(medians, key=medians.__getitem__):
        own = [trial for trial in trials if trial.algorithm == algorithm]
        found.append(
            Score(
                algorithm,
                medians[algorithm],
                dict(sorted(of_studies[algorithm].items())),
                medians[algorithm] / best if math.isfinite(best) else math.nan,
                reached=sum(trial.reached is not None for trial in own),
                trials=len(own),
                test=None if all(trial.test is None for trial in own) else sum(trial.test is True for trial in own),
                unfinished=sum(not trial.ended for trial in own),
            )
        )
    return found
