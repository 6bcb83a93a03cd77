"""A sweep whose trainings are `fake_train.py`."""

import os
import shutil
import sys
import threading
from pathlib import Path

import pytest
from etils import epath  # noqa: F401  imported before threads start

from t2t_flax.extensions.sweeps import attempts, child_process
from t2t_flax.extensions.sweeps.folder import open_or_create, read_sweep
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.extensions.sweeps.trials import expand
from t2t_flax.extensions.sweeps.worker import TrialQueue, Worker

TOY = str(Path(__file__).parents[3] / "configs" / "toy.py")
FIXED = {"distributed.heartbeat_timeout": "10"}
"""A worker whose host has died is noticed soon."""
SWEEP = {
    "config": TOY, "fixed": FIXED, "search": None, "seeds": 1, "score": "sacrebleu", "selection": "valid_nll",
    "baseline": "",
}  # fmt: skip


class FakeSweep:
    """Rows are named after the behaviour of their training; `behaviours[row]` are arguments of fake_train.py."""

    def __init__(self, path: Path, behaviours: dict[str, str], seeds: int = 1, **options):
        rows = [{"name": name, "train.steps": 100 + i} for i, name in enumerate(behaviours)]
        self.behaviours, self.messages = behaviours, []
        trials = expand(TOY, FIXED, rows, seeds)
        self.folder, _ = open_or_create(path, SWEEP | {"seeds": seeds}, trials, **options)
        self.names = list(read_sweep(path)["trials"])

    def training_command(self, folder, names, resources):
        (name,) = names
        cores = ",".join(map(str, resources.cores)) or "-"
        row, seed = name.rsplit(",seed=", 1)
        behaviour = self.behaviours[row].format(seed=seed).split()
        script = str(Path(__file__).with_name("fake_train.py"))
        fake = [sys.executable, "-S", script, str(folder.workdir(name)), *behaviour]
        return [sys.executable, "-S", child_process.__file__, str(os.getpid()), cores, *fake]

    def worker(self, resources=None, retries=1, stop=None, queue=None, stack=1):
        options = dict(retries=retries, stop=stop or threading.Event(), say=self.messages.append, stack=stack)
        return Worker(self.folder, queue or TrialQueue(self.names), resources or [Resources()], **options)

    def work(self, **options):
        self.worker(**options).run()

    def starts(self, name: str) -> int:
        return len((self.folder.workdir(name) / "starts").read_text().split())

    def states(self) -> list[str]:
        return [self.folder.state(name) for name in self.names]

    def update_status(self, name: str, **changes):
        return self.folder.update_status(name, **changes)


@pytest.fixture
def fake_sweep(tmp_path, monkeypatch):
    def make(behaviours, seeds=1):
        sweep = FakeSweep(tmp_path / "sweep", behaviours, seeds)
        monkeypatch.setattr(attempts, "training_command", sweep.training_command)
        return sweep

    return make


FINISHED_ROWS = {"good": "ok {seed}", "same": "ok {seed}1", "poor": "ok 3{seed}"}
"""With two seeds 0 and 1, 1 and 11, 30 and 31 of 40 sentences are wrong."""


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a finished sweep of FINISHED_ROWS, for copies."""
    path = tmp_path_factory.mktemp("finished") / "sweep"
    sweep = FakeSweep(path, FINISHED_ROWS, seeds=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "training_command", sweep.training_command)
        sweep.work(resources=[Resources(), Resources()])
    return path


@pytest.fixture
def finished_sweep(finished, tmp_path):
    """A copy of the finished sweep that the test may change."""
    shutil.copytree(finished, tmp_path / "sweep")
    return FakeSweep(tmp_path / "sweep", FINISHED_ROWS, seeds=2)
