"""Of any number of processes that start at once, one holds the folder: on local disk, without locks, in a bucket."""

import dataclasses
import json
import threading

import pytest
from helpers.writer_processes import remove_locks

from t2t_flax import filesystem as files
from t2t_flax import locks
from t2t_flax.errors import UserError
from t2t_flax.extensions.storage import leases
from t2t_flax.extensions.storage.leases import this_process

STARTS = 50
STORAGE = ["local disk", "no locks", "gs", "s3"]


@pytest.fixture
def run_folder(request, tmp_path, monkeypatch):
    """A folder on each kind of storage."""
    monkeypatch.setattr(leases, "BEAT", 0.2)
    monkeypatch.setattr(leases, "EXPIRY", 600.0)
    if request.param == "gs":
        request.getfixturevalue("gcs")
        return "gs://bucket/run"
    if request.param == "s3":
        request.getfixturevalue("s3")
        return "s3://bucket/run"
    if request.param == "no locks":
        remove_locks(monkeypatch.setattr)
    return str(tmp_path / "run")


def start_at_once(folder) -> tuple[list, list[str]]:
    """The locks that `STARTS` simultaneous starts got, and the messages of those that were refused."""
    held, refused, barrier = [], [], threading.Barrier(STARTS)

    def start():
        barrier.wait()
        try:
            held.append(locks.lock_folder(folder, "train"))
        except UserError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(STARTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return held, refused


def check_one_holds(held, refused):
    assert (len(held), len(refused)) == (1, STARTS - 1)
    assert all("is in use by another process: train, process" in message for message in refused)
    held[0].release()


@pytest.mark.parametrize("run_folder", STORAGE, indirect=True)
def test_one_of_many_simultaneous_starts_holds_the_folder(run_folder):
    check_one_holds(*start_at_once(run_folder))


@pytest.mark.parametrize("run_folder", STORAGE[1:], indirect=True)
def test_one_of_many_takes_over_an_expired_lease(run_folder, monkeypatch):
    def start(*arguments):  # whatever the speed of this machine, the new lease does not expire
        monkeypatch.setattr(leases, "EXPIRY", 600.0)
        real(*arguments)

    real = leases.Lease.__init__
    monkeypatch.setattr(leases.Lease, "__init__", start)
    monkeypatch.setattr(leases, "EXPIRY", 1.0)
    dead = dataclasses.replace(this_process("train"), host="tpu-7", processes="there")
    files.atomic_write(f"{run_folder}/.lock-3", json.dumps(dataclasses.asdict(dead) | {"beat": 9}))
    check_one_holds(*start_at_once(run_folder))
    assert [name for name in files.list_names(run_folder) if name.startswith(".lock-")] == [".lock-4"]
