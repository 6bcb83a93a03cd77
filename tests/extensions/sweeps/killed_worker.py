"""A worker whose process is killed in its first trial: `python killed_worker.py SWEEP`."""

import os
import signal
import sys
import threading
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[n]) for n in (0, 2, 3)]
from stand_in import Training  # noqa: E402

from t2t_flax.extensions.sweeps.folder import Folder, read_sweep  # noqa: E402
from t2t_flax.extensions.sweeps.resources import Resources  # noqa: E402
from t2t_flax.extensions.sweeps.search import SearchTrials  # noqa: E402
from t2t_flax.extensions.sweeps.worker import ListedTrials, Worker  # noqa: E402


def killed(training: Training):
    (training.workdir / "checkpoints").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
    yield 0


if __name__ == "__main__":
    folder, sweep = Folder(Path(sys.argv[1])), read_sweep(sys.argv[1])
    trials = (
        SearchTrials(folder, sweep)
        if sweep["search"]
        else ListedTrials(folder, list(sweep["trials"]))
    )
    start = lambda folder, name, *_: Training(folder.workdir(name), killed)  # noqa: E731
    Worker(folder, trials, [Resources()], 0, threading.Event(), print, start=start).run()
