"""The run that processes translate with."""

import pytest
from helpers.processes import Processes, command


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, cache):
    """The workdir of an uninterrupted run on two processes."""
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    with Processes(workdir.parent / "logs", 2, command(workdir, cache, mesh_cpu_devices=1)) as processes:
        assert processes.wait() == [0, 0], processes.outputs()
    return workdir
