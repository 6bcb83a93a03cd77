"""Files and folders appear complete or not at all.

Errors are classified by what the user can do.
"""

import errno
import fcntl
import os
import re
from pathlib import Path

import pytest
from helpers.refusals import refused

from t2t_flax import files
from t2t_flax.errors import UserError, first_line
from t2t_flax.files import (
    atomic_directory,
    atomic_write,
    delete,
    is_transient,
    is_write_refused,
)


def test_atomic_write_writes_text_and_bytes_and_creates_folders(tmp_path):
    path = tmp_path / "a" / "b"
    atomic_write(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    atomic_write(str(path), b"\x00")
    assert path.read_bytes() == b"\x00" and [p.name for p in path.parent.iterdir()] == ["b"]


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    atomic_write(path, "before")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused("No space", error=OSError):
        atomic_write(path, "after")
    assert path.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_missing_home_folder_is_named_and_not_made(no_home):
    with refused("config.data.cache", "HOME", "~/x"):
        files.expand_home("~/x", "config.data.cache")
    assert files.expand_home("a/~/x", "") == "a/~/x" and files.expand_home("", "") == ""


@pytest.mark.parametrize(
    "error", [ValueError("checksum"), FileNotFoundError(errno.ENOENT, "no such file")]
)
def test_errors_of_the_file_itself_are_not_transient(error):
    assert not is_transient(error) and not is_write_refused(error)


def test_file_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
    """So is its folder: a power failure leaves the old or the new file, never an empty one."""
    calls = []
    paths = {}
    real_open, real_fsync = os.open, os.fsync

    def opened(path, *args, **keys):
        descriptor = real_open(path, *args, **keys)
        paths[descriptor] = os.fspath(path)
        return descriptor

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(
        os, "fsync", lambda d: (calls.append((paths[d], (tmp_path / "a").exists())), real_fsync(d))
    )
    files.atomic_write(tmp_path / "a", "x")
    assert [(path.split(".partial-")[0], there) for path, there in calls] == [
        (str(tmp_path / "a"), False),
        (str(tmp_path), True),
    ]


def test_failing_disk_is_not_an_empty_folder(tmp_path, monkeypatch):
    """Otherwise a run whose checkpoints cannot be listed would start over."""

    def fail(*args, **keys):
        raise OSError(errno.ESTALE, "Stale file handle")

    assert (
        files.list_numbers(tmp_path / "none") == []
        and files.read_if_exists(tmp_path / "none") is None
    )
    for name in ("listdir", "scandir", "stat"):
        monkeypatch.setattr(os, name, fail)
    with refused("Stale", error=OSError):
        files.list_numbers(tmp_path)


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EMFILE]
)
def test_errors_of_a_failing_disk_or_network_are_transient(number):
    assert is_transient(OSError(number, os.strerror(number)))
    assert is_transient(
        ValueError(f"Error opening file [OS error {number}: {errno.errorcode[number]}]")
    )


def files_in(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def fill(folder, text):
    with atomic_directory(folder) as partial:
        (partial / "a").write_text(text)
        assert not folder.exists() or files_in(folder) != {"a": text}


def test_atomic_directory_replaces_an_old_one(tmp_path):
    folder = tmp_path / "parent" / "store"
    fill(folder, "one")
    assert files_in(folder) == {"a": "one"}
    fill(folder, "two")
    assert files_in(folder) == {"a": "two"} and [p.name for p in folder.parent.iterdir()] == [
        "store"
    ]


def test_failed_atomic_directory_keeps_the_old_one(tmp_path):
    fill(tmp_path / "store", "one")
    with refused("full", error=OSError), atomic_directory(tmp_path / "store") as partial:
        (partial / "a").write_text("two")
        raise OSError("full")
    assert files_in(tmp_path / "store") == {"a": "one"} and [
        p.name for p in tmp_path.iterdir()
    ] == ["store"]


def test_atomic_directory_keeps_one_created_meanwhile(tmp_path):
    folder = tmp_path / "store"
    with refused(f"{folder}"), atomic_directory(folder, replace=False) as partial:
        (partial / "a").write_text("ours")
        fill(folder, "theirs")
    assert files_in(folder) == {"a": "theirs"} and [p.name for p in tmp_path.iterdir()] == ["store"]


def test_atomic_directory_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        files,
        "fsync_file",
        lambda path: synced.append((os.path.basename(path), (tmp_path / "s").exists())),
    )
    with atomic_directory(tmp_path / "s") as partial:
        (partial / "a").write_text("x")
    assert synced == [("a", False), (partial.name, False), (tmp_path.name, True)]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("one\ntwo"), "one"),
        (UserError("  \n one "), "one"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "'k'"),
    ],
)
def test_first_line_of_an_error(error, line):
    assert first_line(error) == line and first_line(error, limit=2) == line[:2]


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """As by a `train` that removes what killed writers have left."""
    lock, calls = fcntl.flock, []

    def removed_first(file, flags):
        calls.append(flags)
        if len(calls) == 1:
            delete(tmp_path, re.escape(Path(file.name).name))
        lock(file, flags)

    monkeypatch.setattr(files.fcntl, "flock", removed_first)
    atomic_write(tmp_path / "record.json", "{}")
    assert (tmp_path / "record.json").read_text() == "{}" and len(calls) > 2
    assert [*tmp_path.iterdir()] == [tmp_path / "record.json"]
