"""Exported models on disk: found by content, whole or written again, one writer at a time, and only a few of them."""

import os
import subprocess
import sys

import numpy as np
import pytest

from t2t_flax.extensions.interop.exported_cache import KEPT, digest_of, open_exported


def cached(folder, name, content="model"):
    """(what was loaded, how often it was written)."""
    written = []

    def write(path):
        written.append(path)
        (path / "model.bin").write_text(content)

    return open_exported(folder, name, write, lambda path: (path / "model.bin").read_text()), len(written)


def test_a_model_is_written_once_and_found_again(tmp_path):
    folder = tmp_path / "a"
    assert cached(folder, "x") == ("model", 1) and cached(folder, "x") == ("model", 0)
    assert os.listdir(tmp_path) == ["a"] and os.listdir(folder) == ["x"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.bin").write_text("modem"),
        lambda folder: (folder / "model.bin").unlink(),
        lambda folder: (folder / "content.json").write_text("{"),
        lambda folder: (folder / "content.json").unlink(),
    ],
    ids=["changed", "missing", "list_damaged", "list_missing"],
)
def test_a_damaged_model_is_written_again(tmp_path, damage):
    cached(tmp_path, "x")
    damage(tmp_path / "x")
    assert cached(tmp_path, "x") == ("model", 1) and cached(tmp_path, "x") == ("model", 0)


def test_a_failed_export_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "model.bin").write_text("half")
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        open_exported(tmp_path, "x", fail, lambda folder: None)
    assert os.listdir(tmp_path) == []


def test_models_that_were_not_used_for_longest_are_removed(tmp_path):
    for n in range(KEPT):
        cached(tmp_path, f"m{n}")
        os.utime(tmp_path / f"m{n}", (n, n))
    (tmp_path / "notes").mkdir()
    cached(tmp_path, "m0")  # used again
    cached(tmp_path, "new")
    assert sorted(os.listdir(tmp_path)) == sorted(["m0", "new", "notes", *(f"m{n}" for n in range(2, KEPT))])


def test_of_several_processes_one_writes(tmp_path):
    """The others wait for it: all load the same model, of which one line was written."""
    code = (
        "import pathlib, sys, time\n"
        "from t2t_flax.extensions.interop.exported_cache import open_exported\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "def write(folder):\n"
        "    with open(root / 'writes', 'a') as file: file.write('one\\n')\n"
        "    (folder / 'model.bin').write_text('m' * 10**6)\n"
        "print(len(open_exported(root / 'cache', 'x', write, lambda f: (f / 'model.bin').read_text())))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == [str(10**6)] * 3
    assert (tmp_path / "writes").read_text() == "one\n" and os.listdir(tmp_path / "cache") == ["x"]


def test_the_digest_follows_every_value():
    params = {"a": {"kernel": np.arange(6.0).reshape(2, 3)}, "b": np.zeros(2, np.float32)}
    digest = digest_of(params, {"d_model": 2}, "float32")
    assert digest == digest_of({"b": params["b"], "a": dict(params["a"])}, {"d_model": 2}, "float32")
    changed = {"a": {"kernel": np.arange(6.0).reshape(2, 3) + 1e-12}, "b": params["b"]}
    reshaped = {"a": {"kernel": np.arange(6.0).reshape(3, 2)}, "b": params["b"]}
    others = [digest_of(changed, {"d_model": 2}, "float32"), digest_of(reshaped, {"d_model": 2}, "float32"),
              digest_of(params, {"d_model": 3}, "float32"), digest_of(params, {"d_model": 2}, "int8")]  # fmt: skip
    assert len({digest, *others}) == 5
