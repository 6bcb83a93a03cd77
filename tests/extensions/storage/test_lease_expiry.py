"""Leases are renewed, respected, released, lost and taken over, on a file system without locks."""

import collections
import dataclasses
import json
import os
import threading
import time

import psutil
import pytest
from etils import epath
from helpers.lock_holders import HOLD, other_process
from helpers.writer_processes import remove_locks

from t2t_flax import locks
from t2t_flax.errors import UserError
from t2t_flax.extensions.storage import leases, shared_files
from t2t_flax.extensions.storage.leases import this_process


@pytest.fixture
def no_locks(monkeypatch):
    """A file system without locks, with leases that expire within seconds. The list of what leases were lost by."""
    lost = []
    remove_locks(monkeypatch.setattr)
    monkeypatch.setattr(leases, "BEAT", 0.1)
    monkeypatch.setattr(leases, "EXPIRY", 1.5)
    monkeypatch.setattr(leases.Lease, "_lose", lambda self, what: lost.append(what))
    return lost


def elsewhere(folder, number=1, **values):
    """A lease of a process on another host."""
    folder.mkdir(exist_ok=True)
    holder = dataclasses.replace(this_process("train"), host="tpu-7", process=12, processes="there", **values)
    (folder / f".lock-{number}").write_text(json.dumps(dataclasses.asdict(holder) | {"beat": 3}) + "\n")
    return holder


def lease_names(folder):
    return sorted(path.name for path in folder.glob(".lock-*"))


@pytest.mark.smoke
def test_renewed_lease_is_respected_until_it_is_released(tmp_path, no_locks, monkeypatch):
    monkeypatch.setattr(leases, "EXPIRY", 1e6)  # the disk may be slow
    first = locks.lock_folder(tmp_path, "train")
    with pytest.raises(UserError, match=f"train, process {os.getpid()} on"):
        locks.lock_folder(tmp_path, "prepare")
    first.release()
    first.release()  # the second release does nothing
    locks.lock_folder(tmp_path, "prepare").release()
    assert lease_names(tmp_path) == [".lock-2"]


def test_lease_of_a_dead_host_expires(tmp_path, no_locks, caplog):
    elsewhere(tmp_path, 7)
    start = time.monotonic()
    lease = locks.lock_folder(tmp_path, "train")
    assert lease_names(tmp_path) == [".lock-8"] and time.monotonic() - start > leases.EXPIRY
    assert len(caplog.messages) == 1 and "is locked by train, process 12 on tpu-7" in caplog.messages[0]
    lease.release()


def test_holder_that_creates_its_lease_during_the_wait_is_respected(tmp_path, no_locks, monkeypatch):
    monkeypatch.setattr(leases, "EXPIRY", 1e6)
    elsewhere(tmp_path, 1)
    timer = threading.Timer(0.3, elsewhere, (tmp_path, 2), dict(token="new"))
    timer.start()
    with pytest.raises(UserError, match="in use by another process: train, process 12 on tpu-7"):
        locks.lock_folder(tmp_path, "train")
    timer.join()


def test_lease_of_a_dead_local_process_is_free_at_once(tmp_path, no_locks, monkeypatch):
    monkeypatch.setattr(leases, "EXPIRY", 1e6)
    for changed in (dict(process=2**22 - 3), dict(started=1e9)):  # no such process; its number was reused
        dead = dataclasses.replace(this_process("train"), **changed)
        (tmp_path / ".lock-9").write_text(json.dumps(dataclasses.asdict(dead)))
        locks.lock_folder(tmp_path, "train").release()
        (tmp_path / ".lock-10").unlink()


def test_number_that_its_successor_has_removed_gives_no_lease(tmp_path, no_locks):
    """A process that was about to take over .lock-1 while others have come and gone."""
    elsewhere(tmp_path, 5)
    assert leases.Lease.create(epath.Path(tmp_path), 2, this_process("train")) is None
    assert lease_names(tmp_path) == [".lock-5"]


def test_lease_is_held_though_the_answer_of_the_store_was_lost(tmp_path, no_locks, monkeypatch):
    real = leases.create_file
    monkeypatch.setattr(leases, "create_file", lambda path, data: real(path, data) and False)
    locks.lock_folder(tmp_path, "train").release()


LEASE = "from t2t_flax import locks; from t2t_flax.extensions.storage import leases; import errno\ndef no_locks(*_): raise OSError(errno.ENOLCK, 'No locks available')\n"
LEASE += "locks.fcntl.flock, leases.BEAT, leases.EXPIRY = no_locks, 0.2, 1e6\n" + HOLD


@pytest.mark.parametrize("reason", ["was taken over by train, process 12 on tpu-7", "was not renewed for "])
def test_process_that_lost_its_lease_ends_at_once(tmp_path, reason):
    cut_off = "leases.atomic_write, leases.EXPIRY = no_locks, 2.0\n" if "renewed" in reason else ""
    process = other_process(tmp_path, f"exec({cut_off!r}); time.sleep(600)", LEASE)
    if not cut_off:
        elsewhere(tmp_path, 2)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1 and f".lock-1 {reason}" in err and "ends at once" in err


@pytest.mark.parametrize("kind, options, expected", [
    ("ext4", "rw,relatime", False), ("nfs4", "rw,vers=4.2,local_lock=none", False), ("lustre", "rw,flock", False),
    ("nfs", "rw,vers=3,nolock,local_lock=all", True), ("nfs", "rw,local_lock=flock", True), ("lustre", "rw,localflock", True),
    ("cifs", "rw,nobrl", True), ("fuse.gcsfuse", "rw", True), ("fuse", "rw", True), ("fuse.fuse-overlayfs", "rw", False),
])  # fmt: skip
def test_folder_whose_locks_do_not_reach_other_hosts_gets_a_lease(tmp_path, monkeypatch, kind, options, expected):
    Mount = collections.namedtuple("Mount", "mountpoint fstype opts")
    mounts = [Mount("/", "ext4", "rw"), Mount(str(tmp_path), kind, options), Mount(str(tmp_path / "x"), "fuse", "rw")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    lock = locks.lock_folder(tmp_path / "run", "train")
    assert isinstance(lock, leases.Lease) == expected
    lock.release()


def test_lock_of_a_dead_host_is_waited_for(tmp_path, monkeypatch, caplog):
    """The server of a network file system frees it after a while."""
    monkeypatch.setattr(shared_files, "LOST_HOST", 0.5)
    lock = locks.lock_file(tmp_path / locks.NAME, "train")
    holder = dataclasses.replace(locks.this_process("train"), host="tpu-7")
    (tmp_path / locks.NAME).write_text(json.dumps(dataclasses.asdict(holder)))
    with pytest.raises(UserError, match="is in use by another process: train, .* on tpu-7"):
        locks.lock_folder(tmp_path, "train")
    assert len(caplog.messages) >= 1 and "in case that host is dead" in caplog.messages[0]
    monkeypatch.setattr(shared_files, "LOST_HOST", 1e6)
    threading.Timer(0.2, lock.release).start()
    locks.lock_folder(tmp_path, "train").release()


def test_clock_that_is_set_does_not_make_a_living_holder_look_dead(monkeypatch):
    me = this_process("train")
    boot = psutil.boot_time()
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: boot + 3600)
    assert not me.gone


def test_process_of_another_container_or_host_of_the_same_name_is_not_known_to_be_gone():
    me = dataclasses.replace(this_process("train"), process=2**22 - 3)
    assert me.gone
    assert not dataclasses.replace(me, processes="another boot or container").gone
