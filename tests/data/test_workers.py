"""Worker processes: what they return, raise and load, and that they end."""

import itertools
import os
import signal
import sys
import threading
import time

import pytest
from helpers.refusals import refused

from t2t_flax.data.workers import Workers
from t2t_flax.errors import UserError


def power(x, y):
    return x**y


def test_results_are_in_order_and_few_calls_are_in_flight():
    read, taken = itertools.count(), 0
    calls = ((next(read), 2) for _ in range(40))
    with Workers(power, 2, does="multiplies") as workers:
        for i, result in enumerate(workers.map(calls, 5)):
            assert result == i * i
            assert int(repr(read)[6:-1]) - taken <= 5
            taken += 1
        assert list(workers.map([(3, 3)], 5)) == [27], "a second series uses the same processes"
    assert taken == 40


def raise_error(message):
    raise UserError(message)


def kill_own_process():
    os.kill(os.getpid(), signal.SIGKILL)


def test_errors_of_workers_are_raised_here():
    with Workers(raise_error, 1, does="fails") as workers, refused("pair 7"):
        list(workers.map([("pair 7 is too long",)], 2))
    with Workers(kill_own_process, 1, does="fails") as workers, refused("fails"):
        list(workers.map([()], 2))


def loaded_modules():
    signal.raise_signal(signal.SIGINT)
    return sorted(sys.modules)


def test_workers_ignore_ctrl_c_and_do_not_load_jax():
    with Workers(loaded_modules, 1, does="looks") as workers:
        (names,) = workers.map([()], 1)
    assert not {"jax", "flax", "optax", "orbax"} & set(names)


def note(path):
    with open(path, "a") as file:
        file.write("called ")
    time.sleep(0.2)


def test_the_end_does_not_wait_for_calls_in_the_queue(tmp_path):
    with Workers(note, 1, does="waits") as workers:
        results = workers.map([(tmp_path / "calls",)] * 100, 100)
        next(results)
    assert (tmp_path / "calls").read_text().count("called") < 100


def own_threads():
    return os.getpid(), threading.active_count()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_does_not_wait_for_a_worker_that_was_killed_during_its_own_end(stop):
    """As when all processes of a host are told to end and its memory runs out."""
    workers = Workers(own_threads, 1, does="counts")
    ((process, before),) = workers.map([()], 1)
    os.kill(process, stop)
    while workers.result(workers.submit())[1] == before:  # it has not begun to wait for its parent
        time.sleep(0.05)
    time.sleep(0.2)
    os.kill(process, signal.SIGKILL)
    closing = threading.Thread(target=workers.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
