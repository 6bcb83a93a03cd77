"""SIGTERM and Ctrl-C ask the run to save and stop; a second Ctrl-C ends it at once."""

import signal


class Preemption:
    """Context in which `requested` turns true at the first SIGTERM or SIGINT instead of the process dying."""

    def __init__(self):
        self.requested = False
        self.name = ""
        self._before = {}

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._handle)
            except ValueError:  # not in the main thread, where a caller of the library owns the signals
                pass
        return self

    def __exit__(self, *error):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number, frame):
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
        self.name = signal.Signals(number).name
