"""Stand-ins for the command-line programs of clouds."""

import importlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch


def recording_programs(folder: Path) -> dict[str, str]:
    """Return an environment whose cloud programs only append their arguments to `calls`.

    kubectl also appends its input to `manifests`.
    """
    programs = folder / "bin"
    programs.mkdir()
    for name in ("gcloud", "kubectl", "sky", "xpk", "sbatch", "scancel", "tail", "python3", "git"):
        (programs / name).write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            f"if '--filename=-' in sys.argv: open({str(folder / 'manifests')!r}, 'a').write('---\\n' + sys.stdin.read())\n"
            f"print(json.dumps([{name!r}, *sys.argv[1:]]), file=open({str(folder / 'calls')!r}, 'a'))\n"
        )
        (programs / name).chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}"}


def recorded_calls(folder: Path) -> list[list[str]]:
    """The calls of the programs of `recording_programs`, in order."""
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


LAUNCH = Path(__file__).parents[2] / "launch"


def launch_module(name: str):
    """Import launch/NAME.py, which is in no package."""
    with patch.object(sys, "path", [str(LAUNCH), *sys.path]):
        return importlib.import_module(name)


def launch(
    script: str, *arguments: str, cwd: Path, code: int = 0, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run launch/SCRIPT.sh; its exit code must be `code`."""
    command = [str(LAUNCH / f"{script}.sh"), *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def dry(script: str, *arguments: str, cwd: Path, **env: str) -> list[list[str]]:
    """Return the words of each command that a dry run prints."""
    out = launch(script, arguments[0], "--dry-run", *arguments[1:], cwd=cwd, **env).stdout
    return [shlex.split(line) for line in out.splitlines()]
