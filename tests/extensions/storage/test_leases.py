"""Leases on a workdir in a bucket.

One holder, renewed, respected, released, lost and taken over.
"""

import dataclasses
import json
import os
import threading
import time

import pytest
from etils import epath
from helpers.processes import wait_for
from helpers.refusals import assert_names, refused

from t2t_flax import files, locks
from t2t_flax.errors import UserError
from t2t_flax.extensions.storage import leases
from t2t_flax.extensions.storage.leases import this_process

RUN = "gs://bucket/run"
STARTS = 30


@pytest.fixture
def lost(gcs, monkeypatch):
    """What leases were lost by, which are renewed often and outlive a busy machine."""
    found = []
    monkeypatch.setattr(leases, "BEAT", 0.2)
    monkeypatch.setattr(leases, "EXPIRY", 600.0)
    monkeypatch.setattr(leases.Lease, "_lose", lambda self, what: found.append(what))
    real = leases.Lease.__init__

    def start(*arguments):  # where a test lets another lease expire, this one does not
        monkeypatch.setattr(leases, "EXPIRY", 600.0)
        real(*arguments)

    monkeypatch.setattr(leases.Lease, "__init__", start)
    return found


def elsewhere(number, **values):
    """A lease of a process on another host."""
    holder = dataclasses.replace(
        this_process("train"),
        about="train, process 12 on tpu-7",
        process=12,
        space="there",
        **values,
    )
    files.atomic_write(
        f"{RUN}/.lock-{number}", json.dumps(dataclasses.asdict(holder) | {"beat": 3})
    )


def lease_names():
    return [name for name in files.list_names(RUN) if name.startswith(".lock-")]


@pytest.mark.parametrize("expired", [False, True])
def test_one_of_many_simultaneous_starts_holds_the_folder(lost, monkeypatch, expired):
    if expired:
        monkeypatch.setattr(leases, "EXPIRY", 1.0)
        elsewhere(3)
    held, messages, barrier = [], [], threading.Barrier(STARTS)

    def start_run():
        barrier.wait()
        try:
            held.append(locks.lock_folder(RUN, "train"))
        except UserError as error:
            messages.append(str(error))

    threads = [threading.Thread(target=start_run) for _ in range(STARTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(messages)) == (1, STARTS - 1)
    for message in messages:
        assert_names(message, RUN, "train", str(os.getpid()))
    assert lease_names() == [".lock-4" if expired else ".lock-1"] and not lost
    held[0].release()


def test_renewed_lease_is_respected_until_it_is_released(lost):
    first = locks.lock_folder(RUN, "train")
    with refused(RUN, "train", str(os.getpid())):
        locks.lock_folder(RUN, "prepare")
    first.release()
    first.release()  # the second release does nothing
    locks.lock_folder(RUN, "prepare").release()
    assert lease_names() == [".lock-2"] and not lost


def test_lease_of_a_dead_host_expires(lost, monkeypatch):
    monkeypatch.setattr(leases, "EXPIRY", 0.5)
    elsewhere(7)
    start = time.monotonic()
    lease = locks.lock_folder(RUN, "train")
    assert lease_names() == [".lock-8"] and time.monotonic() - start > 0.5
    lease.release()


def test_lease_of_a_dead_local_process_is_free_at_once(lost):
    dead = dataclasses.replace(this_process("train"), process=2**22 - 3)
    assert dead.gone and not dataclasses.replace(dead, space="another boot or container").gone
    files.atomic_write(f"{RUN}/.lock-9", json.dumps(dataclasses.asdict(dead)))
    locks.lock_folder(RUN, "train").release()


def test_holder_that_creates_its_lease_during_the_wait_is_respected(lost, monkeypatch):
    elsewhere(1)
    # Said when the wait begins.
    monkeypatch.setattr(leases.log, "warning", lambda *said: elsewhere(2, token="new"))
    with refused(RUN, "process 12", "tpu-7"):
        locks.lock_folder(RUN, "train")


def test_number_that_its_successor_has_removed_gives_no_lease(lost):
    """A process that was about to take over .lock-1 while others have come and gone."""
    elsewhere(5)
    assert leases.Lease.create(epath.Path(RUN), 2, this_process("train")) is None
    assert lease_names() == [".lock-5"]


def test_lease_is_held_though_the_answer_of_the_store_was_lost(lost, monkeypatch):
    real = leases.create_object
    monkeypatch.setattr(leases, "create_object", lambda path, data: real(path, data) and False)
    locks.lock_folder(RUN, "train").release()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="needs a clock that counts sleep")
def test_a_lease_is_lost_while_the_machine_sleeps(tmp_path, monkeypatch):
    lost, asleep, clock = [], threading.Event(), time.clock_gettime
    # The holder looks at the clock before its next renewal.
    monkeypatch.setattr(leases, "BEAT", 2.0)
    monkeypatch.setattr(leases.Lease, "_lose", lambda self, what: lost.append(what))
    monkeypatch.setattr(
        time,
        "clock_gettime",
        lambda id: clock(id) + 600 * (asleep.is_set() and id == time.CLOCK_BOOTTIME),
    )
    lease = leases.Lease(epath.Path(tmp_path), 1, this_process("train"), leases._now())
    asleep.set()
    wait_for(lambda: lost, "it is lost")
    lease.release()
    assert_names(lost[0], "not renewed")


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_holder_notices_that_its_lease_is_lost(lost, gcs, monkeypatch, cut_off):
    """Another host took it over; the store does not answer for too long."""
    lease = locks.lock_folder(RUN, "train")
    if cut_off:
        monkeypatch.setattr(leases, "list_names", lambda folder: 1 / 0)
        monkeypatch.setattr(leases, "EXPIRY", 0.5)
    else:
        elsewhere(2)
    wait_for(lambda: lost, "it is lost")
    assert ("tpu-7" in lost[0]) != cut_off
    lease.release()
