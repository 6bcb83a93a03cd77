"""Threads that act as the processes of a run, each on a host of its own."""

import threading


class Hosts:
    """Threads as hosts; one that fails makes the barriers of the others fail, as a coordination service does."""

    def __init__(self, count):
        self.count, self._barrier, self.results = count, threading.Barrier(count), [None] * count
        self._said = []

    def run(self, work):
        """[result or exception of each host]"""

        def host(index):
            pod = ThreadPod(index, self.count, self._barrier, self._said)
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
    def __init__(self, index, count, barrier, said):
        self.index, self.count, self._barrier, self._said = index, count, barrier, said

    def barrier(self, name):
        try:
            self._barrier.wait(30)
        except threading.BrokenBarrierError:
            raise ConnectionError(f"a host is gone; waited until {name}") from None

    def broadcast(self, what, mine="", seconds=0.0):
        if self.index == 0:
            self._said.append(mine)
        self.barrier(what)
        text = self._said[-1]
        self.barrier(f"{what} is read")
        return text
