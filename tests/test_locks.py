"""Locks allow one writer, identify their holder, and are released when it dies."""

import os
import signal
import subprocess
import sys
import threading

from helpers.processes import environment
from helpers.refusals import refused
from helpers.writer_processes import remove_locks

from t2t_flax import locks

HOLD = (
    "from t2t_flax.locks import lock_folder; import sys, time; lock = lock_folder(sys.argv[1], 'train'); "
    "print('held', flush=True); "
)


def other_process(folder, then="time.sleep(600)"):
    """A process that holds the lock of the folder."""
    command = [sys.executable, "-c", HOLD + then, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout.readline() == "held\n"
    return process


def test_second_writer_is_refused_until_the_first_is_killed(tmp_path):
    process = other_process(tmp_path / "run")
    try:
        with refused(f"{tmp_path / 'run'}", "train", f"process {process.pid}"):
            locks.lock_folder(tmp_path / "run", "prepare")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    lock = locks.lock_folder(tmp_path / "run", "prepare")
    with refused("prepare", f"process {os.getpid()}"):
        locks.lock_folder(tmp_path / "run", "train")
    lock.release()
    lock.release()  # the second release does nothing
    locks.lock_folder(tmp_path / "run", "train").release()


def test_child_process_does_not_keep_a_folder_locked(tmp_path):
    """Tokenizing processes may briefly outlive a killed training."""
    script = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    process = other_process(tmp_path, script)
    child = int(process.stdout.readline())
    try:
        process.send_signal(signal.SIGKILL)
        process.wait()
        locks.lock_folder(tmp_path, "train").release()
    finally:
        os.kill(child, signal.SIGKILL)


def test_damaged_lock_file_does_not_block(tmp_path):
    (tmp_path / locks.NAME).write_bytes(b"\x00{")
    locks.lock_folder(tmp_path, "train").release()


def test_lock_of_a_dead_host_is_waited_for(tmp_path, monkeypatch):
    """The server of a network file system frees it after a while."""
    monkeypatch.setattr(locks, "LOST_HOST", 0.5)
    lock = locks.lock_folder(tmp_path, "train")
    (tmp_path / locks.NAME).write_text("train, process 3 on tpu-7, since noon\n")
    with refused(str(tmp_path), "tpu-7"):
        locks.lock_folder(tmp_path, "train")
    monkeypatch.setattr(locks, "LOST_HOST", 1e6)
    threading.Timer(0.2, lock.release).start()
    locks.lock_folder(tmp_path, "train").release()


def test_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    remove_locks(monkeypatch.setattr)
    with refused(str(tmp_path)):
        locks.lock_folder(tmp_path, "train")
