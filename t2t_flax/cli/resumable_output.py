"""An output file that is written in steps and can be continued after a stop.

The steps go to FILE.partial, which becomes FILE at the end. FILE.partial.json records how many
bytes of it are complete, for how many input lines, and for which input and settings.
"""

import fcntl
import hashlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from t2t_flax.errors import UserError
from t2t_flax.filesystem import (
    atomic_write,
    copy_file,
    fsync_file,
    fsync_folder,
    is_remote,
    read_if_exists,
)


def is_stream(name: str) -> bool:
    """Whether the output is standard output ("-"), a pipe or a device, which cannot be resumed."""
    return name == "-" or (not is_remote(name) and os.path.exists(name) and not os.path.isfile(name))


class StreamOutput:
    """Writes each step to standard output, a pipe or a device at once."""

    done = 0

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> "StreamOutput":
        self._file: BinaryIO = sys.stdout.buffer if self._name == "-" else open(self._name, "wb")
        return self

    def __exit__(self, *error: object) -> None:
        if self._name != "-":
            self._file.close()

    def skip(self, lines: Iterator[str], prefixes: Iterator[str] | None = None) -> None:
        """There are no earlier lines."""

    def append(self, lines: Sequence[str], prefixes: Sequence[str] | None, text: str) -> None:
        """Writes the output of the next input lines."""
        self._file.write(text.encode())
        self._file.flush()

    def finish(self) -> None:
        """Nothing is left to do."""


class ResumableOutput:
    """Writes the output of some input lines at a time to a file.

    settings: what the output depends on besides the input, as JSON. With `resume`, goes on after
    the `done` input lines of an earlier `ResumableOutput` that did not finish, which `skip` reads.
    Raises UserError where that one had other settings, where it exists and `resume` is False, and
    while another process writes it.
    """

    def __init__(self, name: str, settings: dict[str, Any], *, resume: bool = False):
        if resume and is_remote(name):
            raise UserError(f"--resume needs a file on this machine, not --output={name}.")
        folder = Path(tempfile.mkdtemp() if is_remote(name) else Path(name).absolute().parent)
        folder.mkdir(parents=True, exist_ok=True)
        self._name = name
        self.partial = folder / f"{name.rpartition('/')[2]}.partial"
        self._record = self.partial.with_name(f"{self.partial.name}.json")
        self._settings = json.loads(json.dumps(settings))
        self._digest = hashlib.blake2b(digest_size=16)
        self._resume = resume
        self.done = 0

    def __enter__(self) -> "ResumableOutput":
        self._file = open(self.partial, "ab")
        try:
            self._lock()
            record = self._read_record()
            self.done, self._expected = record["lines"], record["digest"]
            self._file.truncate(record["bytes"])
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        if not self.done:
            self.partial.unlink(missing_ok=True)
            self._record.unlink(missing_ok=True)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{self.partial} is being written by another process.") from None

    def _read_record(self) -> dict[str, Any]:
        text = read_if_exists(self._record)
        size = os.path.getsize(self.partial)
        if text is None:
            if size:
                raise UserError(f"{self.partial} exists, but not by this command: remove or rename it.")
            return self._write_record()
        record = json.loads(text)
        if not self._resume and record["lines"]:
            raise UserError(
                f"{self.partial} holds the output of {record['lines']} lines: go on with --resume, or "
                "remove it to start again."
            )
        if not self._resume or not record["lines"]:
            return self._write_record()
        theirs = record["settings"]
        for key in sorted(theirs | self._settings):
            before, now = theirs.get(key), self._settings.get(key)
            if before != now:
                raise UserError(
                    f"--resume: {self.partial} was written with {key} = {json.dumps(before)}, now it is "
                    f"{json.dumps(now)}. Use the same settings, or remove the file to start again."
                )
        if size < record["bytes"]:
            raise UserError(
                f"--resume: {self.partial} has {size} bytes, fewer than the {record['bytes']} that were "
                "written. Remove it to start again."
            )
        return record

    def skip(self, lines: Iterator[str], prefixes: Iterator[str] | None = None) -> None:
        """Reads the first `done` input lines. Raises UserError where they are not the earlier ones."""
        for line in itertools.islice(lines, self.done):
            self._hash(line, next(prefixes, None) if prefixes is not None else None)
        if self.done and self._digest.hexdigest() != self._expected:
            raise UserError(
                f"--resume: the first {self.done} input lines are not those of which {self.partial} "
                "holds the output. Use the same input, or remove the file to start again."
            )

    def append(self, lines: Sequence[str], prefixes: Sequence[str] | None, text: str) -> None:
        """Writes the output of the next input lines, and records that it is complete."""
        for line, prefix in itertools.zip_longest(lines, prefixes or ()):
            self._hash(line, prefix)
        self._file.write(text.encode())
        self._file.flush()
        fsync_file(self.partial)
        self.done += len(lines)
        self._write_record()

    def finish(self) -> None:
        """Renames the file; an object store receives it whole."""
        if is_remote(self._name):
            copy_file(self.partial, self._name)
            self.partial.unlink()
        else:
            self.partial.replace(self._name)
            fsync_folder(self.partial.parent)
        self._record.unlink()
        if is_remote(self._name):
            self.partial.parent.rmdir()

    def _hash(self, line: str, prefix: str | None) -> None:
        self._digest.update(f"{line}\n{'' if prefix is None else prefix}\n".encode())

    def _write_record(self) -> dict[str, Any]:
        record = {
            "lines": self.done,
            "bytes": self._file.tell() if self.done else 0,
            "digest": self._digest.hexdigest(),
            "settings": self._settings,
        }
        atomic_write(self._record, json.dumps(record, indent=1))
        return record
