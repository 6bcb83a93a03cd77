"""A local folder whose files are kept up to date in an object store, which knows no appending."""

import logging
import shutil
import tempfile
import threading
from pathlib import Path

from etils import epath

from t2t_flax.filesystem import atomic_write

SECONDS = 20.0
"""Between two sendings of files that have changed."""
log = logging.getLogger("t2t_flax")


class Mirror:
    """Sends the files of `local`, a new folder, whole to `remote`: every `SECONDS` on a thread, by `send`, and at the end.

    For files of some megabytes. What cannot be sent is sent with the next try, and reported; `close` raises it.
    """

    def __init__(self, remote: epath.Path):
        self.remote, self.local = epath.Path(remote), Path(tempfile.mkdtemp(prefix="t2t-flax-"))
        self._sent: dict[Path, tuple[int, int]] = {}
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")
        self._thread.start()

    def send(self) -> None:
        """Sends what has changed since the last time. Raises OSError."""
        with self._lock:
            for path in sorted(p for p in self.local.rglob("*") if p.is_file()):
                about = path.stat()
                state = about.st_size, about.st_mtime_ns
                if self._sent.get(path) != state:
                    atomic_write(self.remote / path.relative_to(self.local).as_posix(), path.read_bytes())
                    self._sent[path] = state

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.send()
        shutil.rmtree(self.local, ignore_errors=True)

    def _work(self) -> None:
        while not self._stop.wait(SECONDS):
            try:
                self.send()
            except Exception as error:  # noqa: BLE001 - any of dozens of network errors; training goes on
                log.warning("could not write to %s (%s); trying again", self.remote, str(error).strip()[:200])
