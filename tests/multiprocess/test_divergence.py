"""Divergence on two processes, and no compilation after the first update."""

import json

import pytest
from helpers.processes import Processes, command

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
TWO = dict(mesh_cpu_devices=1)


def test_all_processes_exit_with_3_after_a_divergence(tmp_path, cache):
    keys = TWO | dict(optimizer_peak_lr=1e30, eval_every_steps=0)
    with Processes(tmp_path / "logs", 2, command(tmp_path / "run", cache, **keys)) as processes:
        assert processes.wait(400) == [3, 3], processes.outputs()
        outputs = [processes.output(i) for i in (0, 1)]
    assert (
        "update 2: loss nan" in outputs[0]
        and "--config.optimizer.peak_lr=" in outputs[0]
        and "update 2" not in outputs[1]
    )
    assert not any("Traceback" in text for text in outputs)
    assert json.loads((tmp_path / "run" / "diverged.json").read_text())["step"] == 2


def test_several_processes_compile_nothing_after_the_first_update(tmp_path, cache):
    """Includes straggler detection, saving and validation; a compilation would look like a hung process."""
    keys = TWO | dict(train_steps=12, checkpoint_every_steps=4, eval_every_steps=6, log_every_steps=2)
    with Processes(tmp_path / "logs", 2, command(tmp_path / "run", cache, **keys), JAX_LOG_COMPILES="1") as processes:
        assert processes.wait(400) == [0, 0], processes.outputs()
        output = processes.output(0)
    before, trained = output.split("first update ")
    compiled = [line for line in trained.split("time: ")[0].splitlines() if line.startswith("Compiling ")]
    # Orbax slices arrays in the first save, to which `hang_timeout` does not apply.
    assert "Compiling " in before and [line for line in compiled if "jit(slice)" not in line] == []
