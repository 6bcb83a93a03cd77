"""The command, in one process and in two."""

import sys

import pytest
from helpers.configs import TINY_FLAGS
from helpers.processes import ROOT, Processes

from t2t_flax.__main__ import main


@pytest.mark.slow
def test_the_command_tests_the_mesh_of_the_config(capsys):
    assert main(["selftest", *TINY_FLAGS, "--config.mesh.fsdp=2"]) == 0
    assert "2 x cpu" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_test_their_devices_together(tmp_path):
    flags = [word.replace("configs/", f"{ROOT}/configs/") for word in TINY_FLAGS]
    words = [sys.executable, "-m", "t2t_flax", "selftest", *flags, "--config.mesh.fsdp=2"]
    with Processes(tmp_path / "logs", 2, words) as processes:
        codes = processes.wait(800)
        logs = [processes.output(i) for i in (0, 1)]
    assert codes == [0, 0], logs
    assert "2 x cpu" in logs[0]
