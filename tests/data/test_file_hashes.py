"""Hashes of source files: those of their bytes, read once as long as the files do not change."""

import hashlib
import json
import os
import time

import pytest
from etils import epath
from helpers.configs import small_config
from helpers.refusals import refused
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.data import file_hashes
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.file_hashes import file_sha256, hash_files
from t2t_flax.tasks import task_of


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """As in a new process, to which every file has settled; returns what begins another one."""
    monkeypatch.setattr(file_hashes, "_SETTLED", -1.0)
    monkeypatch.setattr(file_hashes, "_known", {})
    return lambda: monkeypatch.setattr(file_hashes, "_known", {})


@pytest.fixture
def files_read(monkeypatch):
    """Their names."""
    read, real = [], file_hashes._hash_file
    monkeypatch.setattr(
        file_hashes, "_hash_file", lambda path: read.append(path.name) or real(path)
    )
    return read


@given(st.binary(max_size=200))
def test_hash_is_that_of_the_bytes(tmp_path_factory, data):
    path = epath.Path(tmp_path_factory.mktemp("files")) / "f"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_hashes, "_known", {})
        assert hash_files([path])[0] == hashlib.sha256(data).hexdigest()


def files_in(folder, **contents):
    for name, content in contents.items():
        (folder / name).write_text(content)
    return [epath.Path(folder) / name for name in contents]


def test_unchanged_files_are_read_once_and_changed_ones_again(tmp_path, forgotten, files_read):
    paths, index = (
        files_in(tmp_path, a="a\n", b="b\nb\n"),
        epath.Path(tmp_path) / "cache" / "index.json",
    )
    first = hash_files(paths, index)
    assert files_read == ["a", "b"]
    forgotten()
    assert hash_files(paths[::-1], index) == first[::-1] and len(files_read) == 2
    forgotten()
    os.utime(paths[0], ns=(0, 0))
    assert hash_files(paths, index) == first and files_read[2:] == ["a"], (
        "other times: it is read again"
    )
    forgotten()
    stat = os.stat(paths[1])
    time.sleep(0.02)  # the time of its last change differs
    paths[1].write_text("c\nb\n")
    # The same size and modification time.
    os.utime(paths[1], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert hash_files(paths, index)[1] != first[1] and files_read[3:] == ["b"]


def test_file_that_has_just_changed_does_not_enter_the_index(
    tmp_path, forgotten, files_read, monkeypatch
):
    (path,), index = files_in(tmp_path, a="a"), epath.Path(tmp_path) / "index.json"
    monkeypatch.setattr(file_hashes, "_SETTLED", 3600.0)
    for _ in range(2):
        hash_files([path], index)
        forgotten()
    assert files_read == ["a", "a"] and json.loads(index.read_text()) == {}


def test_file_that_changes_while_it_is_hashed_is_an_error(tmp_path, monkeypatch):
    (path,), index = files_in(tmp_path, a="a"), epath.Path(tmp_path) / "index.json"
    real = file_hashes._hash_file

    def hash_and_append(path):
        found = real(path)
        path.write_text("more")
        return found

    monkeypatch.setattr(file_hashes, "_hash_file", hash_and_append)
    with refused(str(path)):
        hash_files([path], index)
    assert not index.exists()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 3}'])
def test_damaged_index_is_written_again(tmp_path, files_read, content, forgotten):
    (path,), index = files_in(tmp_path, a="a"), epath.Path(tmp_path) / "index.json"
    index.write_text(content.replace('"a"', json.dumps(str(path))))
    assert hash_files([path], index)[0] == hashlib.sha256(b"a").hexdigest()
    forgotten()
    hash_files([path], index)
    assert files_read == ["a"]


def test_start_of_a_prepared_run_does_not_read_the_corpus(tmp_path, forgotten, monkeypatch):
    pairs = "".join(f"{word} house {i}\n" for word in ("a", "the") for i in range(60))
    for name in ("train.en", "train.de", "valid.en", "valid.de"):
        (tmp_path / name).write_text(pairs)
    data = dict(
        train="train.en,train.de", valid="valid.en,valid.de", vocab_size=290, root=str(tmp_path)
    )
    config = small_config(data=data | dict(cache=str(tmp_path / "cache")))
    first = prepare_corpus(task_of(config), tmp_path / "first")
    forgotten()
    monkeypatch.setattr(file_hashes, "_hash_file", None)
    resumed, other = (
        prepare_corpus(task_of(config), tmp_path / run) for run in ("first", "second")
    )
    assert first.train.digest == resumed.train.digest == other.train.digest, (
        "trials of a sweep share the cache"
    )
    time.sleep(0.02)
    (tmp_path / "train.en").write_text(pairs.replace("the", "one"))
    with pytest.raises(TypeError):
        prepare_corpus(task_of(config), tmp_path / "third")
    monkeypatch.undo()
    assert file_sha256(epath.Path(tmp_path) / "train.en") != file_sha256(
        epath.Path(tmp_path) / "train.de"
    )
