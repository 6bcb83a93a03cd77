"""A disk without room."""

import contextlib
import resource
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """A limit on the size of files stands in for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
