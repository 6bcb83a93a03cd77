"""Child processes."""

import os
from pathlib import Path

RUNS_FOLDER = "T2T_RUNS_FOLDER"
"""Environment variable of a child that trains one of several related runs.

Its value is their common folder.
"""


def child_environment(**more: str) -> dict[str, str]:
    """Return this process's environment with `more`.

    In it `python -m t2t_flax` finds this package even if the working folder holds another copy.
    """
    package = str(Path(__file__).parents[3])
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join(dict.fromkeys([package, *map(os.path.abspath, inherited)]))
    return os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"} | more
