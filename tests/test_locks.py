"""Locks allow one writer, identify their holder, and are released when it dies."""

import os
import signal

from helpers.lock_holders import other_process
from helpers.refusals import refused

from t2t_flax import locks


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
