"""Locks allow one writer, identify their holder, and are released when it dies."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from etils import epath

from t2t_flax import locks
from t2t_flax.errors import UserError

ROOT = Path(__file__).parents[1]
HOLD = "from t2t_flax.locks import lock_folder; import sys, time; lock_folder(sys.argv[1], 'train'); print('held', flush=True); "


def other_process(folder, then="time.sleep(600)"):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD + then, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.readline() == "held\n"
    return process


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


@pytest.fixture
def quick(monkeypatch):
    """Leases that expire within seconds."""
    monkeypatch.setattr(locks, "BEAT", 0.1)
    monkeypatch.setattr(locks, "EXPIRY", 1.5)


def lease(path, command="train"):
    return locks._take_lease(epath.Path(path), command, "--workdir=gs://b/run", lambda text: None)


def elsewhere(path, **values):
    holder = dataclasses.replace(locks.this_process("train"), host="tpu-7", process=12, **values)
    path.write_text(json.dumps(dataclasses.asdict(holder) | {"beat": 3}) + "\n")


def test_renewed_lease_is_respected_until_it_is_released(tmp_path, quick):
    path = tmp_path / "lock"
    first = lease(path)
    with pytest.raises(UserError, match=f"train, process {os.getpid()} on"):
        lease(path, "prepare")
    assert first.mine
    first.release()
    assert not path.exists()
    lease(path, "prepare").release()


def test_lease_of_a_dead_host_expires(tmp_path, quick):
    path = tmp_path / "lock"
    elsewhere(path)
    start = time.monotonic()
    new_lease = lease(path)
    assert new_lease.mine and time.monotonic() - start > locks.EXPIRY
    new_lease.release()


def test_lease_of_a_dead_local_process_is_free_at_once(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    for changed in (dict(process=2**22 - 3), dict(started=1.0)):  # no such process; its number was reused
        path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(locks.this_process("train"), **changed))))
        monkeypatch.setattr(locks.time, "sleep", lambda seconds: None)
        lease(path).release()


def test_damaged_lock_file_does_not_block(tmp_path):
    (tmp_path / locks.NAME).write_bytes(b"\x00{")
    locks.lock_folder(tmp_path, "train").release()
