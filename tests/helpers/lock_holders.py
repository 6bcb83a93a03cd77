"""Processes that hold the lock of a folder."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOLD = "from t2t_flax.locks import lock_folder; import sys, time; lock_folder(sys.argv[1], 'train'); print('held', flush=True); "


def other_process(folder, then="time.sleep(600)"):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD + then, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.readline() == "held\n"
    return process
