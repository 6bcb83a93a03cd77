"""Virtual environments of the peers, one each, created when first needed.

The folder `--environments` (default: ~/.cache/t2t_flax/peers) keeps them. A peer whose environment
cannot be created is skipped; the reason goes into the record.
"""

import argparse
import glob
import os
import subprocess
import sys
from pathlib import Path

from t2t_flax.extensions.shared.processes import child_environment

TORCH = "torch==2.13.0"
REQUIREMENTS = {
    "torch": (TORCH, "numpy"),
    "transformers": (TORCH, "numpy", "transformers==5.23.0", "sentencepiece"),
    "joeynmt": (TORCH, "numpy", "joeynmt==2.3.0", "importlib_metadata"),
    "ctranslate2": ("ctranslate2==4.8.5", "numpy"),
}
"""Packages that pip installs for each peer, from PyTorch's CPU index if it can be reached."""
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
DEFAULT_FOLDER = "~/.cache/t2t_flax/peers"


class Unavailable(Exception):
    """A peer cannot be measured on this machine; the message says why."""


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--environments`."""
    help_text = (
        f"folder of the peers' virtual environments, created if missing (default: {DEFAULT_FOLDER})"
    )
    parser.add_argument("--environments", metavar="DIR", default=DEFAULT_FOLDER, help=help_text)


class Environments:
    """The peers' environments in a folder. install=False: only those that exist already."""

    def __init__(self, folder: str, *, install: bool = True):
        self.folder, self._install = Path(folder).expanduser().absolute(), install
        self._failed: dict[str, str] = {}

    def python(self, name: str) -> str:
        """Return an environment's interpreter; "" is this process's own. Raises Unavailable."""
        if not name:
            return sys.executable
        if name in self._failed:
            raise Unavailable(self._failed[name])
        home = self.folder / name
        if not (home / "complete").exists():
            try:
                self._create(name, home)
            except Unavailable as error:
                self._failed[name] = str(error)
                raise
        return str(home / "bin" / "python")

    def _create(self, name: str, home: Path) -> None:
        if not self._install:
            raise Unavailable(
                f"there is no complete environment {home}, and --no-install was given"
            )
        print(f"creating {home}", flush=True)
        _run(sys.executable, "-m", "venv", "--clear", str(home))
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        if TORCH in REQUIREMENTS[name]:
            _run(*pip, "--no-deps", "--retries=0", f"--extra-index-url={TORCH_INDEX}", TORCH)
        _run(*pip, *REQUIREMENTS[name])
        (home / "complete").write_text(" ".join(REQUIREMENTS[name]) + "\n")

    def tcmalloc(self) -> str:
        """Return the path of libtcmalloc. Raises Unavailable."""
        patterns = ("/usr/lib/libtcmalloc*.so*", "/usr/lib/*/libtcmalloc*.so*")
        found = [path for pattern in patterns for path in glob.glob(pattern) if "debug" not in path]
        if found:
            return sorted(found, key=lambda path: ("minimal" not in path, len(path)))[0]
        raise Unavailable("there is no libtcmalloc*.so: apt-get install libtcmalloc-minimal4")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        errors = [line for line in lines if line.startswith(("ERROR", "E:"))]
        raise Unavailable(f"{' '.join(command[:6])} ...: {(errors or lines)[-1][:300]}")


def variables(**more: str) -> dict[str, str]:
    """Return this process's environment variables for a child that imports `benchmarks`.

    In our own interpreter it can import t2t_flax too.
    """
    root = str(Path(__file__).parents[1])
    kept = child_environment(**more)
    return kept | {"PYTHONPATH": os.pathsep.join([root, kept["PYTHONPATH"]])}
