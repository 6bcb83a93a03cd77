"""The commands of benchmarks that train; one that has finished does nothing when a stopped benchmark is started again."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run(command: Sequence[str], folder: str | Path = ".") -> None:
    """Runs `python -m t2t_flax COMMAND` of this checkout in `folder`. Raises CalledProcessError if it fails."""
    print("$ python -m t2t_flax " + shlex.join(command), flush=True)
    variables = os.environ | {"PYTHONPATH": str(Path.cwd())}
    subprocess.run([sys.executable, "-m", "t2t_flax", *command], cwd=folder, env=variables, check=True)


def record_of(workdir: Path, test_set: str = "test") -> dict[str, Any]:
    """The final evaluation record of a finished run on a test set, with its `file`."""
    path = workdir / "eval" / json.loads((workdir / "complete.json").read_text())["records"][test_set]
    return json.loads(path.read_text()) | {"file": path.name}
