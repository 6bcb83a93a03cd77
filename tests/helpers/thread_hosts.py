"""Threads that stand for the hosts of a run."""

import threading


class Hosts:
    """Threads as hosts; one that fails makes the barriers of the others fail, as a coordination service does."""

    def __init__(self, count):
        self.count, self._barrier, self.results = count, threading.Barrier(count), [None] * count

    def run(self, work):
        """[result or exception of each host]"""

        def host(index):
            pod = ThreadPod(index, self.count, self._barrier)
            try:
                self.results[index] = work(pod)
            except Exception as error:  # noqa: BLE001
                self.results[index] = error
                self._barrier.abort()

        threads = [threading.Thread(target=host, args=(i,)) for i in range(self.count)]
        [thread.start() for thread in threads]
        [thread.join(60) for thread in threads]
        return self.results


class ThreadPod:
    def __init__(self, index, count, barrier):
        self.index, self.count, self._barrier, self.passed = index, count, barrier, []

    def barrier(self, name):
        self.passed.append(name)
        try:
            self._barrier.wait(30)
        except threading.BrokenBarrierError:
            raise ConnectionError(f"a host is gone; waited until {name}") from None
