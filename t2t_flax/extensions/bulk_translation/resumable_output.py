"""An output file that is written in steps and can be continued after a stop.

The steps go to FILE.partial, which becomes FILE at the end. FILE.partial.json records how many
bytes of it are complete, for how many input lines, and for what input and settings. The record is
valid only beside a FILE.partial; alone, it was left by a killed process.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from t2t_flax.cli.arguments import check_output
from t2t_flax.cli.lines import FAILED, Line, is_stream, to_stderr
from t2t_flax.distributed.signals import report_progress
from t2t_flax.errors import OK, USER_ERROR, UserError
from t2t_flax.files import (
    PARTIAL,
    atomic_write,
    delete,
    fsync_file,
    fsync_folder,
    is_remote,
    read_if_exists,
)
from t2t_flax.json_file import parse_json


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Add `--resume` to a command that writes a line for each line of its input."""
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on after the lines that FILE.partial of --output=FILE already holds",
    )


def check_resumable_output(args: argparse.Namespace) -> None:
    """Raise UserError for an impossible --resume, and as `check_output`."""
    if args.resume and (is_stream(args.output) or is_remote(args.output)):
        raise UserError(
            f"--resume needs --output=FILE on this machine: {args.output} cannot be resumed."
        )
    check_output("--output", args.output)


class ResumableOutput:
    """Writer of a file, some input lines at a time.

    With `resume`, it goes on after the `done` input lines of an unfinished `ResumableOutput`, which
    `skip` reads. Raises UserError if the earlier one had other settings, if it exists and `resume`
    is False, and while another process writes it.

    Args:
        settings: settings that the output depends on besides the input, as JSON.
        part: "1-of-4" if four processes write FILE.partial-0-of-4 ... instead.
        command: command that writes, named in another writer's message.
    """

    def __init__(
        self,
        name: str,
        settings: dict[str, Any],
        *,
        resume: bool = False,
        part: str = "",
        command: str = "translate_file",
    ):
        self._path = Path(name).absolute()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.partial = self.path_of(part)
        self._record = self.partial.with_name(f"{self.partial.name}.json")
        self._settings = json.loads(json.dumps(settings))
        self._digest = hashlib.blake2b(digest_size=16)
        self._resume, self._command = resume, command
        self.done = 0
        self._failed = 0
        _check_same_division(self.partial)

    def path_of(self, part: str) -> Path:
        """Return the path of a part; "" for the whole output."""
        return self._path.with_name(f"{self._path.name}.partial{'-' if part else ''}{part}")

    def __enter__(self) -> "ResumableOutput":
        from t2t_flax.locks import exclusive_writer

        with contextlib.ExitStack() as stack:
            stack.enter_context(exclusive_writer(self.partial, self._command, wait=False))
            if not self.partial.exists():  # the record must not outlive its file
                self._record.unlink(missing_ok=True)
            self._file = stack.enter_context(open(self.partial, "ab"))
            record = self._read_record()
            self.done, self._expected = record["lines"], record["digest"]
            self._failed, self._before = record["failed"], (record["failed"], record["lines"])
            self._file.truncate(record["bytes"])
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with self._open:
            if not self.done:
                self.remove()

    def remove(self) -> None:
        """Remove the written output, and the record that a killed process left.

        The record goes last: it alone says to which lines the output belongs.
        """
        self.partial.unlink(missing_ok=True)
        self._record.unlink(missing_ok=True)
        delete(self._path.parent, re.escape(self._record.name) + PARTIAL)

    def _read_record(self) -> dict[str, Any]:
        text = read_if_exists(self._record)
        size = os.path.getsize(self.partial)
        if text is None:
            if size:
                raise UserError(
                    f"{self.partial} exists, but not by this command: remove or rename it."
                )
            return self._write_record()
        try:
            record = parse_json(text)
            theirs, lines, written = (
                dict(record["settings"]),
                int(record["lines"]),
                int(record["bytes"]),
            )
            int(record["failed"])
        except (ValueError, LookupError, TypeError):
            raise UserError(
                f"{self._record} is damaged: remove {self.partial} to start again."
            ) from None
        if not self._resume and lines:
            raise UserError(
                f"{self.partial} holds the output of {lines} lines: go on with --resume, or remove"
                " it to start again."
            )
        if not lines:
            return self._write_record()
        for key in sorted(theirs | self._settings):
            before, now = theirs.get(key), self._settings.get(key)
            if before != now:
                raise UserError(
                    f"--resume: {self.partial} was written with {key} = {json.dumps(before)}, now"
                    f" it is {json.dumps(now)}. Use the same settings, or remove the file to start"
                    " again."
                )
        if size < written:
            raise UserError(
                f"--resume: {self.partial} has {size} bytes, fewer than the {written} that were"
                " written. Remove it to start again."
            )
        return record

    def skip(self, lines: Iterator[Line]) -> None:
        """Read the first `done` input lines.

        Raises UserError if they differ from the earlier ones.
        """
        for line in itertools.islice(lines, self.done):
            self._hash(line)
        if self.done and self._digest.hexdigest() != self._expected:
            raise UserError(
                f"--resume: the first {self.done} input lines are not those of which {self.partial}"
                " holds the output. Use the same input, or remove the file to start again."
            )

    def append(self, lines: Sequence[Line], text: str, failed: int) -> None:
        """Write the output of the next input lines, and record it as complete.

        The record includes how many of the lines failed.
        """
        for line in lines:
            self._hash(line)
        self._file.write(text.encode())
        self._file.flush()
        fsync_file(self.partial)
        self.done += len(lines)
        self._failed += failed
        self._write_record()
        report_progress()

    def how_to_go_on(self) -> str:
        """Return the content of an unfinished output and how to continue.

        "" for an output without a line.
        """
        held = (
            f" {self.partial} holds the output of {self.done} lines: the same command with --resume"
            " goes on."
        )
        return held if self.done else ""

    def code(self, say: Callable[[str], None] = to_stderr) -> int:
        """Return the exit code of all lines.

        Says how many failed before a stop; the command has named them.
        """
        failed, lines = self._before
        if failed:
            say(f"warning: {failed} of the {lines} lines before the stop {FAILED}")
        return USER_ERROR if self._failed else OK

    def finish(self) -> None:
        self.partial.replace(self._path)
        fsync_folder(self._path.parent)
        self.remove()

    def _hash(self, line: Line) -> None:
        text = f"{line.text}\n{'' if line.beside is None else line.beside}\n"
        self._digest.update(text.encode("utf-8", "surrogateescape"))

    def _write_record(self) -> dict[str, Any]:
        record = {
            "lines": self.done,
            "bytes": self._file.tell() if self.done else 0,
            "failed": self._failed,
            "digest": self._digest.hexdigest(),
            "settings": self._settings,
        }
        atomic_write(self._record, json.dumps(record, indent=1))
        return record


def _check_same_division(partial: Path) -> None:
    """Raise UserError if another number of processes has begun the same output."""
    base, _, part = partial.name.rpartition(".partial")
    count = part.rpartition("-")[2]
    begun: dict[str, list[str]] = {}
    for path in sorted(partial.parent.iterdir()):
        other = re.fullmatch(re.escape(base) + r"\.partial(-\d+-of-(\d+))?", path.name)
        if other and (other[2] or "") != count and path.stat().st_size:
            begun.setdefault(other[2] or "1", []).append(str(path))
    for number, paths in begun.items():
        raise UserError(
            f"{', '.join(paths)}: written by a command of {number} processes, this is one of"
            f" {count or 1}. Start as many, or remove that to start again."
        )
