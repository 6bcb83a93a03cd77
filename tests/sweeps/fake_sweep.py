"""A sweep whose trainings are `fake_train.py`."""

import os
import sys
import threading
from pathlib import Path

import pytest
from etils import epath  # noqa: F401  loaded before threads are

from t2t_flax.sweeps import attempt as attempt_lib
from t2t_flax.sweeps.folder import read_sweep
from t2t_flax.sweeps.opening import open_folder
from t2t_flax.sweeps.shares import Share
from t2t_flax.sweeps.trials import expand
from t2t_flax.sweeps.worker import Listed, work

TOY = str(Path(__file__).parents[2] / "configs" / "toy.py")


class FakeSweep:
    """Rows named after what their training does; `behaviours[row]` are the arguments of fake_train.py."""

    def __init__(self, path: Path, behaviours: dict[str, str], seeds: int = 1, **more):
        rows = [{"name": name, "train.steps": 100 + i} for i, name in enumerate(behaviours)]
        self.behaviours, self.said = behaviours, []
        trials = expand(TOY, {}, rows, seeds)
        described = {
            "version": 1, "config": TOY, "fixed": {}, "search": None, "seeds": seeds, "score": "sacrebleu", "baseline": "",
        }  # fmt: skip
        self.folder, _ = open_folder(path, described, trials, **more)
        self.names = list(read_sweep(path)["trials"])

    def command(self, folder, names, share):
        (name,) = names
        cores = ",".join(map(str, share.cores)) or "-"
        leash = str(Path(attempt_lib.__file__).with_name("leash.py"))
        row, seed = name.rsplit(",seed=", 1)
        told = self.behaviours[row].format(seed=seed).split()
        fake = [sys.executable, "-S", str(Path(__file__).with_name("fake_train.py")), str(folder.workdir(name)), *told]
        return [sys.executable, "-S", leash, str(os.getpid()), cores, *fake]

    def work(self, shares=None, retries=1, stop=None, queue=None, stack=1, cwd=None):
        how = dict(stack=stack, cwd=cwd, retries=retries, stop=stop or threading.Event(), say=self.said.append)
        work(self.folder, queue or Listed(self.names), shares or [Share()], **how)

    def starts(self, name: str) -> int:
        return len((self.folder.workdir(name) / "starts").read_text().split())


@pytest.fixture
def fake_sweep(tmp_path, monkeypatch):
    def make(behaviours, seeds=1):
        sweep = FakeSweep(tmp_path / "sweep", behaviours, seeds)
        monkeypatch.setattr(attempt_lib, "command", sweep.command)
        return sweep

    return make
