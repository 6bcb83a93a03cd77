"""Process groups whose processes are threads, with a coordination service in memory."""

import threading
import time

from t2t_flax.distributed.coordination import ProcessGroup


class CoordinationService:
    """The part of JAX's client that `ProcessGroup` uses.

    `available` = False: it no longer answers.
    """

    def __init__(self, count: int):
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()
        self._barrier = threading.Barrier(count)
        self.available = True

    def _check(self):
        if not self.available:
            raise ConnectionError("UNAVAILABLE")

    def key_value_set(self, key, value, allow_overwrite=False):
        self._check()
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key, milliseconds):
        self._check()
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, milliseconds / 1000):
                raise TimeoutError("DEADLINE_EXCEEDED")
            return self._values[key]

    def key_value_dir_get(self, folder):
        self._check()
        with self._changed:
            return [(key, value) for key, value in self._values.items() if key.startswith(folder)]

    def wait_at_barrier(self, name, milliseconds):
        self._check()
        try:
            self._barrier.wait(milliseconds / 1000)
        except threading.BrokenBarrierError:
            raise ConnectionError(f"barrier {name} aborted") from None

    def abort(self):
        """Makes all barriers fail, as after the death of a process."""
        self._barrier.abort()


def thread_groups(count: int) -> tuple[CoordinationService, list[ProcessGroup]]:
    """The service, and one group per process."""
    service = CoordinationService(count)
    return service, [ProcessGroup(i, count, service) for i in range(count)]


def run_threads(work, arguments: list) -> list:
    """Runs `work(*each)` for all arguments in parallel threads; returns the results."""
    results = [None] * len(arguments)

    def call(i):
        results[i] = work(*arguments[i])

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(250)
        assert not thread.is_alive()
    return results


def run_processes(count: int, work) -> list:
    """Runs `work(group)` in each of `count` processes; returns their results or exceptions."""
    service, groups = thread_groups(count)

    def run(group):
        try:
            return work(group)
        except Exception as error:  # noqa: BLE001
            service.abort()
            return error

    return run_threads(run, [(group,) for group in groups])


def wait_until(condition, seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
