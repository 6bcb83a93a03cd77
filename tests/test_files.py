"""A file is whole or not there."""

import errno
import os

import pytest
from etils import epath

from t2t_flax import filesystem as files
from t2t_flax.filesystem import is_full, is_passing, write_whole


def test_text_and_bytes_are_written_and_folders_made(tmp_path):
    path = tmp_path / "a" / "b"
    write_whole(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    write_whole(str(path), b"\x00")
    assert path.read_bytes() == b"\x00" and [p.name for p in path.parent.iterdir()] == ["b"]


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_whole(path, "before")
    kind = type(epath.Path(path))

    def full(self, data):
        with open(self, "wb") as file:
            file.write(data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kind, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "after")
    assert path.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["a"]


class HttpError(Exception):
    """As gcsfs raises it."""

    def __init__(self, code: int):
        super().__init__(f"an answer with status {code}")
        self.code = code


@pytest.mark.parametrize("code", [401, 403, 408, 429, 500, 502, 503, 504])
def test_a_store_that_does_not_answer_says_nothing_about_the_file(code):
    assert is_passing(HttpError(code))


@pytest.mark.parametrize(
    "error", [HttpError(404), HttpError(412), ValueError("checksum"), FileNotFoundError(errno.ENOENT, "no such file")]
)
def test_what_does_say_something_about_it(error):
    assert not is_passing(error) and not is_full(error)


def test_a_file_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    """And its folder after that: a power cut leaves the old file or the new one, never an empty one."""
    calls = []
    paths = {}
    real_open, real_fsync = os.open, os.fsync

    def opened(path, *args, **keys):
        descriptor = real_open(path, *args, **keys)
        paths[descriptor] = os.fspath(path)
        return descriptor

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", lambda d: (calls.append((paths[d], (tmp_path / "a").exists())), real_fsync(d)))
    files.write_whole(tmp_path / "a", "x")
    assert [(path.split(".partial-")[0], there) for path, there in calls] == [
        (str(tmp_path / "a"), False),
        (str(tmp_path), True),
    ]


def test_a_failing_disk_is_not_an_empty_folder(tmp_path, monkeypatch):
    """`exists` is False for any error: a run whose checkpoints cannot be listed would begin anew."""

    def fail(*args, **keys):
        raise OSError(errno.ESTALE, "Stale file handle")

    assert files.numbered(tmp_path / "none") == [] and files.read_if_there(tmp_path / "none") is None
    for name in ("listdir", "scandir", "stat"):
        monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match="Stale"):
        files.numbered(tmp_path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EMFILE])
def test_a_disk_or_network_that_fails_now_says_nothing_about_the_file(number):
    assert is_passing(OSError(number, os.strerror(number)))
    assert is_passing(ValueError(f"Error opening file [OS error {number}: {errno.errorcode[number]}]"))
