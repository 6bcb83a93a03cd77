"""What the tests of several processes compare with."""

import pytest
from helpers.processes import Processes, command


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, cache):
    """The workdir of a run on two processes that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    with Processes(workdir.parent / "logs", 2, command(workdir, cache, mesh_cpu_devices=1)) as processes:
        assert processes.wait() == [0, 0], processes.outputs()
    return workdir
