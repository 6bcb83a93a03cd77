"""Processes that hang, are slow, cannot be reached, or diverge."""

import json
import shutil
import signal
import subprocess
import time

import pytest
from helpers.processes import (
    Processes,
    checkpoints,
    command,
    environment,
    free_port,
    losses,
    note,
    resume,
)
from helpers.refusals import assert_names

pytestmark = pytest.mark.timeout(1500)
TWO = dict(mesh_cpu_devices=1)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.drill)])
@pytest.mark.slow
def test_hung_process_is_reported_and_ends_the_run(tmp_path, cache, count):
    """The last one hangs; all others write their stack traces."""
    workdir = tmp_path / "run"
    # Longer than an update on a busy machine, shorter than the heartbeat timeout.
    timeouts = dict(distributed_hang_timeout=15, distributed_heartbeat_timeout=120)
    # In the first save the timeout does not apply.
    quiet = dict(eval_every_steps=0, checkpoint_every_steps=100_000)
    arguments = command(workdir, cache, **TWO, **timeouts, **quiet, train_steps=100_000)
    with Processes(tmp_path / "logs", count, arguments) as processes:
        processes.wait_for_step(workdir, 5)
        processes.all[-1].send_signal(signal.SIGSTOP)
        start = time.monotonic()
        assert [processes.wait_for_end(i) for i in range(count - 1)] == [1] * (count - 1), (
            processes.outputs()
        )
        seconds = time.monotonic() - start
        outputs = [processes.output(i) for i in range(count - 1)]
    note(
        f"SIGSTOP of process {count - 1} of {count} (hang_timeout 15 s): named, the others ended after {seconds:.1f} s"
    )
    for output in outputs:
        assert_names(output, "hang_timeout", f"process {count - 1}", "Thread 0x", "loop.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim", [pytest.param(1, marks=pytest.mark.drill), pytest.param(0, id="the coordinator")]
)
def test_process_without_heartbeats_is_considered_dead(tmp_path, cache, victim):
    keys = TWO | dict(
        distributed_hang_timeout=0,
        distributed_heartbeat_timeout=10,
        train_steps=100_000,
        eval_every_steps=0,
    )
    with Processes(tmp_path / "logs", 2, command(tmp_path / "run", cache, **keys)) as processes:
        processes.wait_for_step(tmp_path / "run", 5)
        processes.all[victim].send_signal(signal.SIGSTOP)
        start = time.monotonic()
        assert processes.wait_for_end(1 - victim) == 1, processes.outputs()
        note(
            f"silent process {victim} (heartbeat_timeout 10 s): the other ended after {time.monotonic() - start:.1f} s"
        )
        output = processes.output(1 - victim)
    assert_names(output, f"process {victim}", "heartbeat_timeout", "Thread 0x", "loop.py")


@pytest.mark.slow
def test_unshared_folder_is_refused(tmp_path, cache):
    arguments = [command(tmp_path / name, cache, **TWO) for name in ("a", "b")]
    with Processes(tmp_path / "logs", 2, arguments) as processes:
        assert processes.wait() == [2, 2], processes.outputs()
    for i in (0, 1):
        assert_names(processes.output(i), str(tmp_path), "process 1")
    assert not (tmp_path / "a" / "config.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("missing", [0, 1], ids=["coordinator", "process"])
def test_process_that_never_starts_is_reported_after_the_timeout(tmp_path, cache, missing):
    """JAX alone would abort with a stack trace."""
    port = free_port() if missing else 9
    env = dict(
        T2T_NUM_PROCESSES="2",
        T2T_PROCESS_ID=str(1 - missing),
        JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{port}",
    )
    arguments = command(tmp_path / "run", cache, distributed_initialization_timeout=2)
    result = subprocess.run(
        arguments, env=environment(**env), capture_output=True, text=True, timeout=300
    )
    assert (
        result.returncode == 1 and "Traceback" not in result.stderr and "***" not in result.stderr
    )
    assert_names(result.stderr, "initialization_timeout" if missing else "127.0.0.1:9")


@pytest.mark.drill
@pytest.mark.slow
def test_fsdp_checkpoint_unreadable_by_one_process_is_skipped(tmp_path, cache):
    """Parameters are sharded over two processes and the files of one are lost.

    Both fall back to the same checkpoint.
    """
    workdir, keys = (
        tmp_path / "run",
        TWO | dict(mesh_fsdp=2, train_steps=10, eval_every_steps=0, model_dropout=0.0),
    )
    with Processes(tmp_path / "logs", 2, command(workdir, cache, **keys)) as processes:
        assert processes.wait() == [0, 0], processes.outputs()
    before, newest = losses(workdir), workdir / "checkpoints" / "10"
    written = [
        path for path in (newest / "params" / "ocdbt.process_1").rglob("*") if path.is_file()
    ]
    assert written, sorted(newest.rglob("*"))
    for path in written:
        path.unlink()
    shutil.rmtree(tmp_path / "logs")
    (workdir / "complete.json").unlink()
    resume(tmp_path, cache, 2, **keys)
    output = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert_names(output, "checkpoint 10", "update 5")
    assert losses(workdir) == before
    assert [*(workdir / "checkpoints").glob("10.damaged-*")] and checkpoints(workdir) == [5, 10]


@pytest.mark.slow
def test_all_processes_exit_with_3_after_a_divergence(tmp_path, cache):
    keys = TWO | dict(optimizer_peak_lr=1e30, eval_every_steps=0)
    with Processes(tmp_path / "logs", 2, command(tmp_path / "run", cache, **keys)) as processes:
        assert processes.wait() == [3, 3], processes.outputs()
        outputs = [processes.output(i) for i in (0, 1)]
    assert_names(outputs[0], "update 2", "--config.optimizer.peak_lr=")
    assert "update 2" not in outputs[1]
    assert not any("Traceback" in text for text in outputs)
    assert json.loads((tmp_path / "run" / "diverged.json").read_text())["step"] == 2
