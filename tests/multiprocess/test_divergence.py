"""Two processes that diverge, and what they compile once they train."""

import json

import pytest
from helpers.processes import Processes, command

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
TWO = dict(mesh_cpu_devices=1)


def test_all_processes_of_a_run_that_diverges_end_with_3(tmp_path, cache):
    keys = TWO | dict(optimizer_peak_lr=1e30, eval_every_steps=0)
    with Processes(tmp_path / "logs", 2, command(tmp_path / "run", cache, **keys)) as pod:
        assert pod.wait(400) == [3, 3], pod.outputs()
        said = [pod.output(i) for i in (0, 1)]
    assert "update 2: loss nan" in said[0] and "--config.optimizer.peak_lr=" in said[0] and "update 2" not in said[1]
    assert not any("Traceback" in text for text in said)
    assert json.loads((tmp_path / "run" / "diverged.json").read_text())["step"] == 2


def test_nothing_compiles_after_the_first_update_of_several_processes(tmp_path, cache):
    """Comparing their pace, saving and validating included: a compilation would look as if a process hung."""
    keys = TWO | dict(train_steps=12, checkpoint_every_steps=4, eval_every_steps=6, log_every_steps=2)
    with Processes(tmp_path / "logs", 2, command(tmp_path / "run", cache, **keys), JAX_LOG_COMPILES="1") as pod:
        assert pod.wait(400) == [0, 0], pod.outputs()
        said = pod.output(0)
    before, trained = said.split("first update ")
    compiled = [line for line in trained.split("time: ")[0].splitlines() if line.startswith("Compiling ")]
    # Orbax slices arrays in the first save, in which `hang_timeout` does not hold.
    assert "Compiling " in before and [line for line in compiled if "jit(slice)" not in line] == []
