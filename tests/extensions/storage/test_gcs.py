"""Files, metrics, tokenizers, hashes and checkpoints in a bucket."""

import hashlib
import json
import os
import sys

import jax.numpy as jnp
import pytest
from etils import epath
from helpers.configs import devices_mesh, model_and_state, small_config
from helpers.refusals import refused

from t2t_flax import config as config_lib
from t2t_flax import files
from t2t_flax.data import file_hashes
from t2t_flax.extensions.storage import mirror
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.progress import MetricsWriter, read_metrics
from t2t_flax.training.train_state import abstract_state
from t2t_flax.training.workdir import adopt_config, checkpoint_steps, writing

RUN = "gs://bucket/run"

pytestmark = pytest.mark.usefixtures("gcs")


def test_file_is_written_in_one_request_or_keeps_its_content(gcs):
    files.atomic_write(f"{RUN}/a/b", "é\n")
    files.atomic_write(f"{RUN}/a/b", b"\x00")
    assert gcs.names() == ["run/a/b"] and gcs.read("run/a/b") == b"\x00"
    assert not any(command == "DELETE" or "rewrite" in path for command, path in gcs.requests)
    gcs.failures += [("POST", "/upload/", 403)] * 20
    with pytest.raises(Exception) as error:
        files.atomic_write(f"{RUN}/a/b", "after")
    assert files.is_transient(error.value)
    gcs.failures.clear()
    assert gcs.read("run/a/b") == b"\x00"


@pytest.mark.parametrize("size", [0, 7_000_001])
def test_files_are_copied_to_and_from_the_bucket(gcs, tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "a").write_bytes(data)
    files.copy_file(tmp_path / "a", f"{RUN}/a")
    files.copy_file(f"{RUN}/a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == data == gcs.read("run/a")


def test_writes_of_another_host_are_visible_at_once(gcs):
    folder = epath.Path(RUN)
    files.atomic_write(folder / "a", "1")
    assert [p.name for p in folder.iterdir()] == ["a"] and not (folder / "b").exists()
    for text in (b"2", b"3"):
        gcs.put("bucket", "run/b", text, {})
        assert (folder / "b").read_text() == text.decode() and len(list(folder.iterdir())) == 2


def test_folder_is_moved_and_appears_when_it_is_complete(gcs):
    for name in ("x/1", "x/y/2"):
        files.atomic_write(f"{RUN}/5/{name}", name)
    files.move_folder(f"{RUN}/5", f"{RUN}/5.damaged-1")
    assert gcs.names() == ["run/5.damaged-1/x/1", "run/5.damaged-1/x/y/2"]
    with files.atomic_directory(f"{RUN}/mean") as partial:
        files.atomic_write(partial / "x/1", "new")
        assert not any(name.startswith("run/mean/") for name in gcs.names())
    with pytest.raises(OSError), files.atomic_directory(f"{RUN}/mean") as partial:
        files.atomic_write(partial / "x/2", "newer")
        raise OSError("full")
    with refused(f"{RUN}/mean"), files.atomic_directory(f"{RUN}/mean", replace=False) as partial:
        files.atomic_write(partial / "x/3", "newest")
    assert gcs.names(prefix="run/mean") == ["run/mean/x/1"]


def test_forbidden_bucket_and_missing_package_are_named(gcs, monkeypatch):
    gcs.failures += [("GET", "/b/", 401)] * 50
    with refused(RUN):
        files.check_reachable(RUN)
    gcs.failures.clear()
    files.check_reachable(RUN)
    files.check_reachable("/no/such/folder")
    for name in [name for name in sys.modules if name.partition(".")[0] == "gcsfs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for name in ("gcs", "gs"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, name, raising=False)
    with refused(RUN, "[gcs]"):
        files.check_reachable(RUN)


def write_lines(steps, resume=0):
    writer = MetricsWriter(epath.Path(RUN), resume_step=resume)
    for step in steps:
        writer.write(step, {"loss": 1.0 / step})
    return writer


def test_metrics_are_read_back_after_a_restart(gcs):
    write_lines(range(1, 8)).close()
    writer = write_lines(range(5, 10), resume=4)
    writer.send()
    assert [line["step"] for line in read_metrics(RUN)] == list(range(1, 10)), (
        "also if the machine is lost now"
    )
    before = len(gcs.requests)
    writer.send()
    assert len(gcs.requests) == before, "what has not changed is not sent"
    writer.write(10, {"loss": 0.1})
    writer.close()
    assert [
        json.loads(line)["step"] for line in gcs.read("run/metrics.jsonl").splitlines()
    ] == list(range(1, 11))
    assert gcs.names() == ["run/metrics.jsonl"] and not writer._files.local.exists()


def test_temporary_outage_does_not_stop_the_run(gcs, monkeypatch, caplog):
    monkeypatch.setattr(mirror, "SECONDS", 0.05)
    gcs.failures += [("POST", "/upload/", 403)] * 3
    writer = write_lines([1])
    for _ in range(4000):
        if gcs.names():
            break
        writer._files._stop.wait(0.05)
    assert RUN in caplog.text and [line["step"] for line in read_metrics(RUN)] == [1]
    writer.close()


class HttpError(Exception):
    """Like the one of gcsfs."""

    def __init__(self, code: int):
        super().__init__(f"an answer with status {code}")
        self.code = code


@pytest.mark.parametrize(
    "code, transient",
    [(401, True), (403, True), (429, True), (503, True), (404, False), (412, False)],
)
def test_errors_of_a_store_are_transient_and_those_of_an_object_are_not(code, transient):
    assert files.is_transient(HttpError(code)) == transient


def test_text_is_read_once_and_again_when_it_is_replaced(gcs, monkeypatch):
    data, index, text = (
        bytes(range(256)) * 10,
        epath.Path("gs://bucket/cache/hashes.json"),
        epath.Path("gs://bucket/t"),
    )
    read, real = [], file_hashes._hash_file
    monkeypatch.setattr(file_hashes, "_hash_file", lambda path: read.append(path) or real(path))

    def hash_in_a_new_process():
        monkeypatch.setattr(file_hashes, "_known", {})
        return file_hashes.hash_files([text], index)[0]

    gcs.put("bucket", "t", data, {})
    assert hash_in_a_new_process() == hash_in_a_new_process() == hashlib.sha256(data).hexdigest()
    assert len(read) == 1
    gcs.put("bucket", "t", data[::-1], {})
    assert hash_in_a_new_process() != hashlib.sha256(data).hexdigest() and len(read) == 2


@pytest.mark.slow
def test_damaged_and_unfinished_checkpoints_are_skipped(gcs):
    """The damaged one is set aside and the leftover of a killed save is removed.

    Opening alone changes nothing.
    """
    config = small_config(
        model=dict(d_model=8, d_ff=8, num_heads=2), checkpoint=dict(every_steps=1)
    )
    model, tx, state, _ = model_and_state(config)
    checkpoints = Checkpoints(f"{RUN}/checkpoints", keep_last=3)
    for step in (1, 2):
        meta = {
            "step": step,
            "updates_per_epoch": 1,
            "config": config_lib.as_json(config),
            "digests": {},
            "progress": {},
        }
        checkpoints.save(state.replace(step=jnp.int32(step)), meta, float(step))
    checkpoints.close()
    name = "run/checkpoints/2/meta/metadata"
    gcs.put("bucket", name, gcs.read(name).replace(b'"step": 2', b'"step": 3'), {})
    gcs.put("bucket", "run/checkpoints/5/params/x", b"half", {})
    before = {name: gcs.read(name) for name in gcs.names()}
    reopened = Checkpoints(f"{RUN}/checkpoints", keep_last=3)
    assert reopened.steps() == [1, 2] == checkpoint_steps(epath.Path(RUN))
    assert {name: gcs.read(name) for name in gcs.names()} == before
    reopened.clean_up()
    assert before.keys() - set(gcs.names()) == {"run/checkpoints/5/params/x"}
    abstract, _ = abstract_state(config, model, tx, parametrization_of(config), devices_mesh())
    assert reopened.restore_latest(abstract, config)[1]["step"] == 1
    assert any("/2.damaged-" in name for name in gcs.names()) and reopened.steps() == [1]


def test_foreign_folder_is_left_untouched_and_a_lease_is_none(gcs):
    files.atomic_write(f"{RUN}/tokenizer/vocab.json", "{}")
    with refused(RUN):
        adopt_config(epath.Path(RUN), small_config())
    assert gcs.names() == ["run/tokenizer/vocab.json"]
    with writing(epath.Path("gs://bucket/new"), "train"):
        assert gcs.names(prefix="new") == ["new/.lock-1"]
    adopt_config(epath.Path("gs://bucket/new"), small_config())
