"""Locks allow one writer, identify their holder, and are released when it dies."""

import dataclasses
import os
import signal

import psutil
import pytest
from helpers.lock_holders import other_process

from t2t_flax import locks
from t2t_flax.errors import UserError
from t2t_flax.locks import this_process


def test_second_writer_is_refused_until_the_first_is_killed(tmp_path):
    process = other_process(tmp_path / "run")
    try:
        message = rf"--workdir=.*run is in use .*: train, process {process.pid} on .*, since \d{{4}}-.* UTC"
        with pytest.raises(UserError, match=message):
            locks.lock_folder(tmp_path / "run", "prepare")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    lock = locks.lock_folder(tmp_path / "run", "prepare")
    with pytest.raises(UserError, match=f"prepare, process {os.getpid()} on"):
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


def test_clock_that_is_set_does_not_make_a_living_holder_look_dead(monkeypatch):
    me = this_process("train")
    boot = psutil.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: boot + 3600)
    assert not me.gone


def test_process_of_another_container_or_host_of_the_same_name_is_not_known_to_be_gone():
    me = dataclasses.replace(this_process("train"), process=2**22 - 3)
    assert me.gone
    assert not dataclasses.replace(me, processes="another boot or container").gone


def test_damaged_lock_file_does_not_block(tmp_path):
    (tmp_path / locks.NAME).write_bytes(b"\x00{")
    locks.lock_folder(tmp_path, "train").release()
