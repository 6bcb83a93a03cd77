"""Growing files of a workdir in an object store.

Nothing can be appended there, so a local folder is uploaded again.
"""

import contextlib
import logging
import re
import sqlite3
import tempfile
import threading
from pathlib import Path

from etils import epath

from t2t_flax.files import atomic_write, delete
from t2t_flax.training.progress import GrowingFiles

SECONDS = 20.0
"""Seconds between two uploads of changed files."""
_SQLITE_LOGS = ("-journal", "-wal", "-shm")
log = logging.getLogger("t2t_flax")


class Mirror(GrowingFiles):
    """Mirror that uploads whole files from `local`, a new folder, to `remote`.

    It does so every `SECONDS` in a thread, in `send` and in `close`. It is for files of some
    megabytes. A failed upload is logged and tried again; in `send` and `close` it raises OSError.
    """

    def __init__(self, remote: epath.Path):
        super().__init__(epath.Path(tempfile.mkdtemp(prefix="t2t-flax-")))
        self.remote = epath.Path(remote)
        self._sent: dict[Path, tuple[int, int]] = {}
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")
        self._thread.start()

    def send(self) -> None:
        """Upload changed files. Raises OSError."""
        with self._lock:
            for path in sorted(self.local.rglob("*")):
                with contextlib.suppress(FileNotFoundError):  # a tracker's thread has replaced it
                    self._send_file(path)

    def _send_file(self, path: Path) -> None:
        if not path.is_file() or ".partial-" in path.name or path.name.endswith(_SQLITE_LOGS):
            return
        stat = path.stat()
        state = stat.st_size, stat.st_mtime_ns
        if self._sent.get(path) != state:
            data = _whole_database(path) if path.suffix == ".db" else path.read_bytes()
            atomic_write(self.remote / path.relative_to(self.local).as_posix(), data)
            self._sent[path] = state

    def close(self) -> None:
        """Upload changed files, and remove `local`. Raises OSError."""
        self._stop.set()
        self._thread.join()
        self.send()
        delete(self.local.parent, re.escape(self.local.name))

    def _work(self) -> None:
        while not self._stop.wait(SECONDS):
            try:
                self.send()
            except Exception as error:  # noqa: BLE001 - any of dozens of network errors; training goes on
                log.warning(
                    "could not write to %s (%s); trying again",
                    self.remote,
                    str(error).strip()[:200],
                )


def open_growing_files(workdir: epath.Path) -> Mirror:
    """Return a mirror of a workdir in an object store.

    Its folder `local` takes the growing files.
    """
    return Mirror(workdir)


def _whole_database(path: Path) -> bytes:
    """Return an SQLite file as of its last transaction.

    Another thread may be writing the next.
    """
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.serialize()
