"""The self-test by its command, and in a training of several processes."""

import pytest
from helpers.configs import TINY_FLAGS
from helpers.processes import Processes, command

from t2t_flax.__main__ import main


@pytest.mark.slow
def test_the_command_tests_the_mesh_of_the_config(capsys):
    assert main(["selftest", *TINY_FLAGS, "--config.mesh.cpu_devices=8", "--config.mesh.fsdp=2"]) == 0
    out = capsys.readouterr().out
    assert "self-test of 8 x cpu beside float32 on the CPU: data=4 fsdp=2 tensor=1, float32" in out
    assert "self-test: no fault" in out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_test_their_devices_together_before_they_train(tmp_path, cache):
    keys = dict(mesh_cpu_devices=1, mesh_fsdp=2, train_steps=1, selftest_at_start="always", data_test="")
    words = command(tmp_path / "run", cache, **keys)
    with Processes(tmp_path / "logs", 2, words) as processes:
        codes = processes.wait(800)
        logs = [processes.output(i) for i in (0, 1)]
    assert codes == [0, 0], logs
    assert "self-test of 2 x cpu" in logs[0]
    assert logs[0].index("self-test: no fault") < logs[0].index("first update")
    assert not (tmp_path / "run" / "selftest.tmp").exists()
