"""What the tests of several processes compare with."""

import pytest
from helpers.processes import Processes, command


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """The run on two processes that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    with Processes(workdir.parent / "logs", 2, command(workdir, cache, mesh_cpu_devices=1)) as pod:
        assert pod.wait() == [0, 0], pod.outputs()
    return workdir
