"""launch/slurm.sbatch with stand-ins for SLURM's programs: the exit codes after which the job is requeued."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SBATCH = Path(__file__).parents[2] / "launch" / "slurm.sbatch"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def run_job(tmp_path, code: int, **env: str) -> tuple[int, bool]:
    """(exit code of the job, whether it was requeued) when its tasks exit with `code`."""
    for name, text in (
        ("srun", f"exit {code}"),
        ("squeue", "echo RUNNING"),
        ("scontrol", f"touch {tmp_path}/requeued"),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"} | env
    result = subprocess.run(["bash", str(SBATCH), "true"], env=env, capture_output=True, text=True, timeout=300)
    return result.returncode, (tmp_path / "requeued").exists()


@pytest.mark.parametrize("code", [0, 2, 3, 126, 127])
def test_final_exit_codes_are_not_requeued(tmp_path, code):
    assert run_job(tmp_path, code) == (code, False)


@pytest.mark.parametrize("code", [1, 75, 137])
def test_failures_are_requeued_up_to_the_limit(tmp_path, code):
    assert run_job(tmp_path, code, SLURM_RESTART_COUNT="8", T2T_RESTARTS="08") == (code, False)
    assert run_job(tmp_path, code, SLURM_RESTART_COUNT="8", T2T_RESTARTS="09") == (0, True)
