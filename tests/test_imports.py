"""Which modules a command imports: the core's, and those of the extensions that the run uses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.configs import TINY_FLAGS

ROOT = Path(__file__).parents[1]
LISTING = """
import atexit, json, sys
import t2t_flax.__main__
def write():
    with open(sys.argv.pop(), "w") as file:
        json.dump([name for name in sys.modules if name.partition(".")[0] == "t2t_flax"], file)
atexit.register(write)
out, sys.argv = sys.argv[1], ["t2t_flax", *sys.argv[2:]]
code = t2t_flax.__main__.main()
sys.argv.append(out)
sys.exit(code)
"""
BY_DEFAULT = {"kernels", "planning", "storage", "trackers"}
"""Extensions that take part in every training: options of products on CPUs, processes that lay out
updates, MFU, locks of shared file systems, TensorBoard."""


def loaded(tmp_path, *words, stdin="") -> set[str]:
    """The modules of the package that a command has imported at its end."""
    out = tmp_path / "modules.json"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LISTING, str(out), *words]
    subprocess.run(
        command, cwd=ROOT, env=environment, input=stdin, text=True, check=True, capture_output=True
    )
    return set(json.loads(out.read_text()))


def of_unused_extensions(modules: set[str], used: set[str]) -> set[str]:
    """Return loaded modules beyond shared ones, and registration and keys of unused extensions."""
    parts = [name.split(".") for name in modules if name.startswith("t2t_flax.extensions.")]
    used = used | {"shared"}
    return {
        ".".join(name) for name in parts if name[2] not in used and name[3:] not in ([], ["keys"])
    }


@pytest.mark.slow
def test_commands_import_the_core_and_the_extensions_that_they_use(tmp_path):
    run = f"--workdir={tmp_path / 'run'}"
    trained = loaded(tmp_path, "train", *TINY_FLAGS, run)
    translated = loaded(tmp_path, "translate", run, stdin="It is late.\n")
    assert not of_unused_extensions(trained, BY_DEFAULT) and not of_unused_extensions(
        translated, {"kernels"}
    )
    assert {name for name in trained if "serving" in name or "sweeps" in name} == {
        "t2t_flax.extensions.serving",
        "t2t_flax.extensions.sweeps",
    }
    print(f"train: {len(trained)} modules, translate: {len(translated)}")
