"""What `evaluate` writes: scores, texts and their digests."""

import errno
import hashlib
import json
import os
import tempfile

import pytest
from helpers.refusals import refused, refused_command
from helpers.runs import one_device

from t2t_flax.__main__ import main
from t2t_flax.data.dataset import split_source
from t2t_flax.evaluation.evaluate import evaluate
from t2t_flax.evaluation.restore import load, stored_config
from t2t_flax.tasks import task_of


@pytest.fixture(autouse=True)
def devices():
    with one_device():
        yield


def test_record_has_all_references_of_a_test_set(finished, tmp_path):
    workdir, _ = finished
    pairs = [("the dog sleeps .", "der Hund schläft ."), ("it is late .", "es ist spät .")]
    for name, lines in (
        ("s.en", [source for source, _ in pairs]),
        ("r1.de", [target for _, target in pairs]),
        ("r2.de", ["ein Hund schläft .", "es ist schon spät ."]),
    ):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    overrides = {"mesh.data": "-1", "data.root": str(tmp_path), "data.test": "s.en,r1.de,r2.de"}
    record, triples = evaluate(load(workdir, step=2, overrides=overrides), "test")
    folder = workdir / "eval"
    name = record["hypotheses"].removesuffix(".hyp.txt")
    assert record["references"] == [f"{name}.ref.txt", f"{name}.ref2.txt"]
    for text, file, digest in zip(
        ("r1.de", "r2.de"), record["references"], record["digests"]["references"], strict=True
    ):
        assert (folder / file).read_bytes() == (tmp_path / text).read_bytes()
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest
    assert record["scores"]["sacrebleu"]["signature"].startswith("nrefs:2|")
    assert [(source, reference) for source, reference, _ in triples] == pairs
    one = evaluate(load(workdir, step=4, overrides=overrides | {"data.test": "s.en,r1.de"}), "test")[0]
    other = one["hypotheses"].removesuffix(".hyp.txt")
    assert one["references"] == f"{other}.ref.txt" and one["scores"]["nll"] > 0
    with refused("data.train", "'s.en,r1.de,r2.de'"):
        split_source(task_of(stored_config(workdir, overrides | {"data.train": "s.en,r1.de,r2.de"})), "train")


@pytest.mark.parametrize("output", [False, True])
def test_a_folder_for_records_that_is_read_only_is_named_before_anything_is_decoded(
    finished, tmp_path, monkeypatch, output
):
    workdir, _ = finished
    folder = tmp_path if output else workdir
    monkeypatch.setattr("t2t_flax.jobs.evaluate", lambda *_, **__: pytest.fail("decoded"))

    def read_only(dir):
        assert os.fspath(dir).startswith(os.fspath(folder))
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    flags = [f"--output={folder}"] if output else []
    refused_command(["evaluate", f"--workdir={workdir}", *flags], str(folder), "--output=DIR")


def test_evaluate_stores_texts_and_scores(finished, capsys):
    workdir, _ = finished
    flags = [f"--workdir={workdir}", "--config.mesh.data=-1"]  # all simulated devices
    assert main(["evaluate", *flags, "--step=2"]) == 0
    first = workdir / "eval" / "test-2.json"
    stored = json.loads(first.read_text())
    assert stored["data"]["corpus"] == "built-in captions" and stored["references"] == "test-2.ref.txt"
    for kind in ("hypotheses", "references"):
        text = (first.parent / stored[kind]).read_bytes()
        assert text.count(b"\n") == 30 and hashlib.sha256(text).hexdigest() == stored["digests"][kind]
    assert {"sacrebleu", "tokenized_bleu", "paper_bleu"} <= set(stored["scores"])
    output = capsys.readouterr().out
    assert all(
        name in output for name in ("sacreBLEU", "tokenized BLEU", "paper BLEU", "built-in captions", "toy:test:30")
    )
