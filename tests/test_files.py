"""A file is whole or not there."""

import pytest
from etils import epath

from t2t_flax.files import is_full, is_passing, write_whole


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
    "error", [HttpError(404), HttpError(412), ValueError("checksum"), OSError(5, "Input/output error")]
)
def test_what_does_say_something_about_it(error):
    assert not is_passing(error) and not is_full(error)
