"""Files, metrics and tokenizers in a bucket."""

import json
import logging
import os
import sys

import pytest
from etils import epath

from t2t_flax import filesystem as files
from t2t_flax.config import Data
from t2t_flax.data.sources import open_source
from t2t_flax.data.tokenizers import TokenizerPair, train_tokenizers
from t2t_flax.errors import UserError
from t2t_flax.extensions.storage import mirror
from t2t_flax.training.progress import MetricsWriter, read_metrics

RUN = "gs://bucket/run"


def test_file_is_written_in_one_request(gcs):
    files.atomic_write(f"{RUN}/a/b", "é\n")
    files.atomic_write(f"{RUN}/a/b", b"\x00")
    assert gcs.names() == ["run/a/b"] and gcs.read("run/a/b") == b"\x00"
    assert not any(command == "DELETE" or "rewrite" in path for command, path in gcs.requests)


def test_failed_write_keeps_the_old_file(gcs):
    files.atomic_write(f"{RUN}/a", "before")
    gcs.failures += [("POST", "/upload/", 403)] * 20
    with pytest.raises(Exception, match="403|[Ff]orbidden"):
        files.atomic_write(f"{RUN}/a", "after")
    gcs.failures.clear()
    assert gcs.read("run/a") == b"before"


@pytest.mark.parametrize("size", [0, 5, 7_000_001])
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
    gcs.put("bucket", "run/b", b"2", {})
    assert (folder / "b").exists() and (folder / "b").read_text() == "2" and len(list(folder.iterdir())) == 2
    gcs.put("bucket", "run/b", b"3", {})
    assert (folder / "b").read_text() == "3"


def test_folder_is_moved(gcs):
    for name in ("x/1", "x/y/2"):
        files.atomic_write(f"{RUN}/5/{name}", name)
    files.move_folder(f"{RUN}/5", f"{RUN}/damaged/5-0")
    assert gcs.names() == ["run/damaged/5-0/x/1", "run/damaged/5-0/x/y/2"]


def test_directory_appears_when_it_is_complete(gcs):
    with files.atomic_directory(f"{RUN}/mean") as partial:
        files.atomic_write(partial / "x/1", "new")
        assert not any(name.startswith("run/mean/") for name in gcs.names())
    assert gcs.names() == ["run/mean/x/1"]
    with pytest.raises(OSError, match="full"), files.atomic_directory(f"{RUN}/mean") as partial:
        files.atomic_write(partial / "x/2", "newer")
        raise OSError("full")
    with (
        pytest.raises(UserError, match="already exists"),
        files.atomic_directory(f"{RUN}/mean", replace=False) as partial,
    ):
        files.atomic_write(partial / "x/3", "newest")
    assert gcs.names() == ["run/mean/x/1"]


def test_forbidden_bucket_is_a_user_error(gcs):
    gcs.failures += [("GET", "/b/", 401)] * 50
    with pytest.raises(UserError, match="gs://bucket/run cannot be reached .* Does the bucket exist"):
        files.check_reachable(RUN)
    gcs.failures.clear()
    files.check_reachable(RUN)
    files.check_reachable("/no/such/folder")


def test_missing_gcsfs_is_a_user_error(gcs, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "gcsfs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for name in ("gcs", "gs"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, name, raising=False)
    with pytest.raises(UserError, match=r"gs://bucket/run needs a package .* pip install -e '\.\[gcs\]'"):
        files.check_reachable(RUN)


def write_lines(steps, resume=0):
    writer = MetricsWriter(epath.Path(RUN), resume_step=resume)
    for step in steps:
        writer.write(step, {"loss": 1.0 / step})
    return writer


def test_metrics_are_read_back_after_a_restart(gcs):
    write_lines(range(1, 8)).close()
    write_lines(range(5, 11), resume=4).close()
    assert [line["step"] for line in read_metrics(RUN)] == list(range(1, 11))
    assert gcs.names() == ["run/metrics.jsonl"]


def test_uploaded_metrics_survive_loss_of_the_machine(gcs):
    writer = write_lines(range(1, 4))
    writer.send()
    assert [line["step"] for line in read_metrics(RUN)] == [1, 2, 3]
    before = sum("metrics.jsonl" in path for _, path in gcs.requests)
    writer.send()
    assert sum("metrics.jsonl" in path for _, path in gcs.requests) == before, "what has not changed is not sent"
    writer.write(4, {"loss": 0.1})
    writer.close()
    assert [json.loads(line)["step"] for line in gcs.read("run/metrics.jsonl").splitlines()] == [1, 2, 3, 4]
    assert not writer._files.local.exists()


def test_temporary_outage_does_not_stop_the_run(gcs, monkeypatch, caplog):
    monkeypatch.setattr(mirror, "SECONDS", 0.05)
    gcs.failures += [("POST", "/upload/", 403)] * 3
    with caplog.at_level(logging.WARNING, "t2t_flax"):
        writer = write_lines([1])
        for _ in range(4000):
            if gcs.names():
                break
            writer._files._stop.wait(0.05)
    assert "could not write to gs://bucket/run" in caplog.text and "trying again" in caplog.text
    assert [line["step"] for line in read_metrics(RUN)] == [1]
    writer.close()


@pytest.mark.parametrize("joint", [True, False])
def test_tokenizer_folder_is_complete_with_its_last_file(gcs, tmp_path, joint):
    (tmp_path / "t.tsv").write_text("".join(f"a house {i}\tein Haus {i}\n" for i in range(50)))
    source = open_source("t.tsv", root=str(tmp_path), source_language="en", target_language="de")
    pair = train_tokenizers(source, Data(tokenizer="bpe", vocab_size=290, joint_vocabulary=joint))
    folder = f"{RUN}/tokenizer"
    assert not TokenizerPair.is_complete(folder)
    pair.save(folder)
    assert TokenizerPair.is_complete(folder) and TokenizerPair.load(folder).digest == pair.digest
    names = gcs.names()
    assert names == (
        ["run/tokenizer/tokenizer.model"] if joint else ["run/tokenizer/source.model", "run/tokenizer/target.model"]
    )
    epath.Path(f"gs://bucket/{names[0]}").unlink()
    assert not TokenizerPair.is_complete(folder)


class HttpError(Exception):
    """Like the one of gcsfs."""

    def __init__(self, code: int):
        super().__init__(f"an answer with status {code}")
        self.code = code


@pytest.mark.parametrize("code", [401, 403, 408, 429, 500, 502, 503, 504])
def test_http_errors_of_a_store_are_transient(code):
    assert files.is_transient(HttpError(code))


@pytest.mark.parametrize("code", [404, 412])
def test_errors_of_the_object_itself_are_not_transient(code):
    assert not files.is_transient(HttpError(code)) and not files.is_write_refused(HttpError(code))
