"""launch/slurm.sbatch with stand-ins for SLURM's programs: after which exit codes the job is queued again."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SBATCH = Path(__file__).parents[2] / "launch" / "slurm.sbatch"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def end(tmp_path, code: int, **env: str) -> tuple[int, bool]:
    """(exit code of the job, whether it was queued again) where the tasks end with `code`."""
    for name, text in (
        ("srun", f"exit {code}"),
        ("squeue", "echo RUNNING"),
        ("scontrol", f"touch {tmp_path}/requeued"),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"} | env
    done = subprocess.run(["bash", str(SBATCH), "true"], env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, (tmp_path / "requeued").exists()


@pytest.mark.parametrize("code", [0, 2, 3, 126, 127])
def test_what_would_end_alike_is_not_queued_again(tmp_path, code):
    assert end(tmp_path, code) == (code, False)


@pytest.mark.parametrize("code", [1, 75, 137])
def test_a_failure_is_queued_again_as_often_as_asked(tmp_path, code):
    assert end(tmp_path, code, SLURM_RESTART_COUNT="8", T2T_RESTARTS="08") == (code, False)
    assert end(tmp_path, code, SLURM_RESTART_COUNT="8", T2T_RESTARTS="09") == (0, True)
