"""A file is whole or not there."""

import pytest
from etils import epath

from t2t_flax.files import write_whole


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
