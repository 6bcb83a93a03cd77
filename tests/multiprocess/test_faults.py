"""Processes that hang, are slow, cannot be reached, or diverge."""

import json
import shutil
import signal
import subprocess
import threading
import time

import pytest
from helpers.processes import Processes, checkpoints, command, environment, free_port, losses, note, resume

pytestmark = pytest.mark.timeout(1500)
TWO = dict(mesh_cpu_devices=1)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.drill)])
@pytest.mark.slow
def test_hung_process_is_reported_and_ends_the_run(tmp_path, cache, count):
    """The last one hangs; all others write their stack traces."""
    workdir = tmp_path / "run"
    # Longer than an update on a busy machine, shorter than the heartbeat timeout.
    timeouts = dict(resilience_hang_timeout=15, distributed_heartbeat_timeout=120)
    quiet = dict(eval_every_steps=0, checkpoint_every_steps=0)  # in the first save the timeout does not apply
    arguments = command(workdir, cache, **TWO, **timeouts, **quiet, train_steps=100_000)
    with Processes(tmp_path / "logs", count, arguments) as processes:
        processes.wait_for_step(workdir, 5)
        processes.all[-1].send_signal(signal.SIGSTOP)
        start = time.monotonic()
        assert [processes.wait_for_end(i) for i in range(count - 1)] == [1] * (count - 1), processes.outputs()
        seconds = time.monotonic() - start
        outputs = [processes.output(i) for i in range(count - 1)]
    note(
        f"SIGSTOP of process {count - 1} of {count} (hang_timeout 15 s): named, the others ended after {seconds:.1f} s"
    )
    for i, output in enumerate(outputs):
        assert (
            "no update for" in output and "hang_timeout = 15" in output and f"Late: process {count - 1} on" in output
        ), output
        assert "Thread 0x" in output and "loop.py" in output
        assert "loop.py" in (workdir / "stacks" / f"process-{i}.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, pytest.param(0, id="the coordinator")])
def test_process_without_heartbeats_is_considered_dead(tmp_path, cache, victim):
    keys = TWO | dict(
        resilience_hang_timeout=0, distributed_heartbeat_timeout=10, train_steps=100_000, eval_every_steps=0
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
    assert f"process {victim} on" in output and "silent for" in output and "Thread 0x" in output, output
    assert "loop.py" in (tmp_path / "run" / "stacks" / f"process-{1 - victim}.txt").read_text()


@pytest.mark.drill
def test_straggler_is_reported_with_its_share(tmp_path, cache):
    """One process runs only a quarter of the time."""
    workdir = tmp_path / "run"
    arguments = command(workdir, cache, **TWO, train_steps=100000, eval_every_steps=0, log_every_steps=5)
    with Processes(tmp_path / "logs", 2, arguments) as processes:
        processes.wait_for_step(workdir, 20)
        finished = threading.Event()

        def slow():
            while not finished.is_set():
                processes.all[1].send_signal(signal.SIGSTOP)
                time.sleep(0.045)
                processes.all[1].send_signal(signal.SIGCONT)
                time.sleep(0.015)

        thread = threading.Thread(target=slow)
        thread.start()
        try:
            start = time.monotonic()
            processes.wait_for_output(0, "straggler: process 1 on", 200)
            note(f"straggler with a quarter of a core: named after {time.monotonic() - start:.1f} s")
        finally:
            finished.set()
            thread.join()
    assert "the others wait for it up to" in processes.output(0)


@pytest.mark.slow
def test_unshared_folder_is_refused(tmp_path, cache):
    arguments = [command(tmp_path / name, cache, **TWO) for name in ("a", "b")]
    with Processes(tmp_path / "logs", 2, arguments) as processes:
        assert processes.wait() == [2, 2], processes.outputs()
    for i in (0, 1):
        assert "is not shared" in processes.output(i) and "process 1 on" in processes.output(i)
    assert not (tmp_path / "a" / "config.json").exists()


@pytest.mark.slow
def test_missing_coordinator_is_reported_after_the_timeout(tmp_path, cache):
    env = dict(T2T_NUM_PROCESSES="2", T2T_PROCESS_ID="1", JAX_COORDINATOR_ADDRESS="127.0.0.1:9")
    arguments = command(tmp_path / "run", cache, distributed_initialization_timeout=2)
    result = subprocess.run(arguments, env=environment(**env), capture_output=True, text=True, timeout=300)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "coordinator at 127.0.0.1:9: waiting at most 2 s" in result.stdout
    assert "coordinator at 127.0.0.1:9: the processes of this run did not all start" in result.stderr


@pytest.mark.slow
def test_missing_process_is_reported_after_the_timeout(tmp_path, cache):
    """JAX alone would abort with a stack trace."""
    env = dict(T2T_NUM_PROCESSES="2", T2T_PROCESS_ID="0", JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{free_port()}")
    arguments = command(tmp_path / "run", cache, distributed_initialization_timeout=2)
    result = subprocess.run(arguments, env=environment(**env), capture_output=True, text=True, timeout=300)
    assert result.returncode == 1 and "Traceback" not in result.stderr and "***" not in result.stderr
    assert "waiting at most 2 s for the others" in result.stdout
    assert "did not all start within config.distributed.initialization_timeout = 2 s" in result.stderr


@pytest.mark.drill
@pytest.mark.slow
def test_fsdp_checkpoint_unreadable_by_one_process_is_skipped(tmp_path, cache):
    """Parameters are sharded over two processes and the files of one are lost; both fall back to the same checkpoint."""
    workdir, keys = tmp_path / "run", TWO | dict(mesh_fsdp=2, train_steps=10, eval_every_steps=0, model_dropout=0.0)
    with Processes(tmp_path / "logs", 2, command(workdir, cache, **keys)) as processes:
        assert processes.wait() == [0, 0], processes.outputs()
    before, newest = losses(workdir), workdir / "checkpoints" / "10"
    written = [path for path in (newest / "params" / "ocdbt.process_1").rglob("*") if path.is_file()]
    assert written, sorted(newest.rglob("*"))
    for path in written:
        path.unlink()
    shutil.rmtree(tmp_path / "logs")
    (workdir / "complete.json").unlink()
    resume(tmp_path, cache, 2, **keys)
    output = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert f"checkpoint 10 in {workdir / 'checkpoints'} is damaged" in output and "after update 5" in output, output
    assert losses(workdir) == before
    assert (workdir / "damaged" / "10-0").is_dir() and checkpoints(workdir) == [5, 10]


@pytest.mark.slow
def test_all_processes_exit_with_3_after_a_divergence(tmp_path, cache):
    keys = TWO | dict(optimizer_peak_lr=1e30, eval_every_steps=0)
    with Processes(tmp_path / "logs", 2, command(tmp_path / "run", cache, **keys)) as processes:
        assert processes.wait() == [3, 3], processes.outputs()
        outputs = [processes.output(i) for i in (0, 1)]
    assert (
        "update 2: loss nan" in outputs[0]
        and "--config.optimizer.peak_lr=" in outputs[0]
        and "update 2" not in outputs[1]
    )
    assert not any("Traceback" in text for text in outputs)
    assert json.loads((tmp_path / "run" / "diverged.json").read_text())["step"] == 2
