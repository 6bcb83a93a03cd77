"""The self-test by its command, in a training, and in several processes."""

import subprocess
import sys

import pytest
from helpers.configs import TINY_FLAGS
from helpers.processes import ROOT, Processes, command, environment


def run(*words: str, **variables: str) -> subprocess.CompletedProcess:
    words = (sys.executable, "-m", "t2t_flax", *words)
    return subprocess.run(words, cwd=ROOT, env=environment(**variables), capture_output=True, text=True)


@pytest.mark.slow
def test_the_command_tests_the_mesh_of_the_config():
    done = run("selftest", *TINY_FLAGS, "--config.mesh.cpu_devices=4", "--config.mesh.fsdp=2")
    assert done.returncode == 0, done.stderr
    assert "self-test of 4 x cpu beside float32 on the CPU: data=2 fsdp=2 tensor=1, float32" in done.stdout
    assert "self-test: no fault" in done.stdout


@pytest.mark.slow
def test_a_training_tests_its_devices_first(tmp_path):
    done = run("train", *TINY_FLAGS, f"--workdir={tmp_path / 'run'}", "--config.selftest.at_start=always")
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("self-test: no fault") < done.stdout.index("first update")
    assert not (tmp_path / "run" / "selftest.tmp").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_test_together(tmp_path, cache):
    words = command(tmp_path / "run", cache, mesh_cpu_devices=2, mesh_fsdp=2, train_steps=1, selftest_at_start="always")
    with Processes(tmp_path / "logs", 2, words) as processes:
        codes = [process.wait(600) for process in processes.all]
    logs = [path.read_text() for path in processes.logs]
    assert codes == [0, 0], logs
    assert "self-test of 4 x cpu" in logs[0] and "self-test: no fault" in logs[0]
