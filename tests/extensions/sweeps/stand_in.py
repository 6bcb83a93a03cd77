"""Sweeps whose trainings run in this process, take no time and fail on request."""

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.records import record

from t2t_flax.errors import DIVERGED, STOPPED, USER_ERROR
from t2t_flax.extensions.sweeps.folder import Folder, open_or_create, read_sweep
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.extensions.sweeps.trials import expand
from t2t_flax.extensions.sweeps.worker import ListedTrials, Worker

TOY = str(Path(__file__).parents[3] / "configs" / "toy.py")
SWEEP = {
    "config": TOY, "fixed": {}, "search": None, "seeds": 1, "score": "sacrebleu", "selection": "valid_nll", "baseline": "",
}  # fmt: skip
REFERENCES = [f"this is sentence number {i} of the test" for i in range(40)]


@dataclasses.dataclass
class Training:
    """A training as a worker sees it; `steps` yields None while it runs, then its exit code."""

    workdir: Path
    steps: Callable[["Training"], Iterator[int | None]]
    terminated: bool = False

    def __post_init__(self):
        self.workdir.mkdir(parents=True, exist_ok=True)
        with (self.workdir / "starts").open("a") as file:
            file.write(".")
        self._steps, self._code = self.steps(self), None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = next(self._steps)
        return self._code

    def terminate(self) -> None:
        self.terminated = True

    def log(self, step: int, **values: float) -> None:
        with (self.workdir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step} | values) + "\n")

    def complete(self, wrong: int = 0) -> None:
        """Write complete.json, and a record in which so many of 40 sentences are wrong."""
        (self.workdir / "eval").mkdir(exist_ok=True)
        hypotheses = [
            r if i >= wrong else r.replace("sentence", "word") for i, r in enumerate(REFERENCES)
        ]
        path = record(self.workdir / "eval", "test-3", hypotheses, REFERENCES)
        scores = {"sacrebleu": {"score": 100.0 - wrong}, "nll": wrong / 10}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"scores": scores}))
        marker = {
            "step": 3,
            "reason": "steps",
            "records": {"test": path.name},
            "summary": "",
            "seconds": {"step": 1.0},
        }
        (self.workdir / "complete.json").write_text(json.dumps(marker))


def ok(
    wrong: int = 0, nll: tuple[float, ...] = (3.0, 2.0)
) -> Callable[[Training], Iterator[int | None]]:
    def steps(training):
        for step, value in enumerate(nll, 1):
            training.log(step, loss=value, valid_nll=value)
        training.complete(wrong)
        yield 0

    return steps


def exits(*codes: int) -> Callable[[Training], Iterator[int | None]]:
    """Fail with these codes in turn, then succeed."""

    def steps(training):
        attempt = len((training.workdir / "starts").read_text())
        if attempt > len(codes):
            yield from ok()(training)
        yield codes[attempt - 1]

    return steps


def until_stopped(training: Training) -> Iterator[int | None]:
    """Save and exit when the worker stops; complete when resumed."""
    if (training.workdir / "checkpoints").exists():
        yield from ok()(training)
    while not training.terminated:
        yield None
    (training.workdir / "checkpoints").mkdir()
    yield STOPPED


fails, mistaken, diverges = exits(*[1] * 9), exits(*[USER_ERROR] * 9), exits(*[DIVERGED] * 9)


class Grid:
    """Return a grid with a row for each behaviour.

    `steps` of a Training, or a function of the seed.
    """

    def __init__(self, path: Path, behaviours: dict, seeds: int = 1, **options):
        rows = [{"name": name, "train.steps": 100 + i} for i, name in enumerate(behaviours)]
        trials = expand(TOY, {}, rows, seeds)
        self.folder, self.sweep = open_or_create(path, SWEEP | {"seeds": seeds}, trials, **options)
        self.behaviours, self.names, self.messages = (
            behaviours,
            list(read_sweep(path)["trials"]),
            [],
        )
        self.stop = threading.Event()

    def start(self, folder: Folder, name: str, *_) -> Training:
        row, _, seed = name.rpartition(",seed=")
        steps = self.behaviours[row]
        return Training(
            folder.workdir(name), steps[int(seed)] if isinstance(steps, tuple) else steps
        )

    def worker(self, *, parallel: int = 1, retries: int = 1) -> Worker:
        trials, resources = ListedTrials(self.folder, self.names), [Resources()] * parallel
        return Worker(
            self.folder,
            trials,
            resources,
            retries,
            self.stop,
            self.messages.append,
            start=self.start,
        )

    def work(self, **options) -> None:
        self.worker(**options).run()

    def starts(self) -> list[int]:
        files = [self.folder.workdir(name) / "starts" for name in self.names]
        return [len(file.read_text()) if file.exists() else 0 for file in files]

    def states(self) -> list[str]:
        return [self.folder.state(name) for name in self.names]


@pytest.fixture
def grid(tmp_path, monkeypatch) -> Callable[..., Grid]:
    monkeypatch.setattr("t2t_flax.extensions.sweeps.worker._POLL_INTERVAL", 0.001)
    monkeypatch.setattr("t2t_flax.extensions.sweeps.worker._CLAIM_INTERVAL", 0.01)
    monkeypatch.setattr("t2t_flax.extensions.sweeps.worker._SIGNAL_SECONDS", 0.01)
    return lambda behaviours, seeds=1, **options: Grid(
        tmp_path / "sweep", behaviours, seeds, **options
    )
