"""What `evaluate` writes: scores, texts and their digests."""

import errno
import hashlib
import json
import os
import tempfile

import pytest
from helpers.refusals import assert_names, refused, refused_command

from t2t_flax.__main__ import main
from t2t_flax.config import resolve
from t2t_flax.data.splits import check_sources, split_source
from t2t_flax.decoding.translator import Hypothesis, Translation
from t2t_flax.evaluation.evaluate import evaluate, summary
from t2t_flax.evaluation.restore import TrainedModel, load, stored_config
from t2t_flax.tasks import task_of


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
    one = evaluate(
        load(workdir, step=4, overrides=overrides | {"data.test": "s.en,r1.de"}), "test"
    )[0]
    other = one["hypotheses"].removesuffix(".hyp.txt")
    assert one["references"] == f"{other}.ref.txt" and one["scores"]["nll"] > 0
    with refused("data.train", "'s.en,r1.de,r2.de'"):
        split_source(
            task_of(stored_config(workdir, overrides | {"data.train": "s.en,r1.de,r2.de"})), "train"
        )


SOURCES = ["Where is the dog?", "It is late.", "", "The dog is old.", "The cat is old."]
REFERENCES = ["Wo ist der Hund?", " ", "Hier.", "Der Hund ist alt.", "\u200b"]


def test_lines_without_a_source_or_reference_are_named_and_not_scored(
    finished, tmp_path, monkeypatch, capsys
):
    """Perfect outputs have perfect scores; such lines change no other score."""
    workdir, _ = finished
    kept = [0, 3]
    for name, lines in (
        ("t.en", SOURCES),
        ("t.de", REFERENCES),
        ("more.de", ["", "", "", "Alt ist der Hund.", "x"]),
    ):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        (tmp_path / f"kept-{name}").write_text("".join(lines[i] + "\n" for i in kept))
    outputs = [Translation((Hypothesis(REFERENCES[i], (), 0.0, 0.0, False),)) for i in kept]
    monkeypatch.setattr(TrainedModel, "translate", lambda self, lines, **_: outputs[: len(lines)])

    def evaluated(test):
        flags = [
            f"--workdir={workdir}",
            f"--output={tmp_path / test}",
            f"--config.data.root={tmp_path}",
            "--step=2",
        ]
        assert main(["evaluate", *flags, f"--config.data.test={test}"]) == 0
        (file,) = (tmp_path / test / "eval").glob("*.json")
        return json.loads(file.read_text()), file.parent

    record, folder = evaluated("t.en,t.de")
    assert record["scores"]["sacrebleu"]["score"] == record["scores"]["exact_match"]["score"] == 100
    assert record["scores"]["ter"]["score"] == 0
    assert record["data"]["not_scored"] == {
        "2": "without_reference",
        "3": "without_source",
        "5": "without_reference",
    }
    counts = [
        record["counts"][name] for name in ("sentences", "without_source", "without_reference")
    ]
    assert counts == [2, 1, 2]
    assert (folder / record["references"]).read_text().splitlines() == [REFERENCES[i] for i in kept]
    assert_names(capsys.readouterr().out, "1 lines", "source", "scored: 3", "2 lines", "scored: 2,")
    assert evaluated("kept-t.en,kept-t.de")[0]["scores"] == record["scores"]
    several, _ = evaluated("kept-t.en,kept-more.de,kept-t.de")
    assert (
        several["counts"]["empty_references"] == 1
        and "nrefs:var" in several["scores"]["sacrebleu"]["signature"]
    )
    assert (
        several["scores"]["nll"] != record["scores"]["nll"]
        and several["scores"]["sacrebleu"]["score"] == 100
    )
    assert_names(capsys.readouterr().out, "1 references")


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_set_without_text_is_refused(tmp_path, split):
    (tmp_path / "t.en").write_text("a\nb\n")
    (tmp_path / "t.de").write_text("\n \n")
    with refused("t.de", "of 2"):
        check_sources(
            task_of(resolve({"data": {split: "t.en,t.de", "root": str(tmp_path)}})), [split]
        )


@pytest.mark.parametrize("output", [False, True])
def test_a_folder_for_records_that_is_read_only_is_named_before_anything_is_decoded(
    finished, tmp_path, monkeypatch, output
):
    workdir, _ = finished
    folder = tmp_path if output else workdir
    monkeypatch.setattr(
        "t2t_flax.evaluation.sets.evaluate_sets", lambda *_, **__: pytest.fail("decoded")
    )

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
    assert (
        stored["data"]["corpus"] == "built-in captions" and stored["references"] == "test-2.ref.txt"
    )
    for kind in ("hypotheses", "references"):
        text = (first.parent / stored[kind]).read_bytes()
        assert (
            text.count(b"\n") == 30 and hashlib.sha256(text).hexdigest() == stored["digests"][kind]
        )
    assert {"sacrebleu", "tokenized_bleu", "paper_bleu"} <= set(stored["scores"])
    output = capsys.readouterr().out
    assert all(
        name in output
        for name in (
            "sacreBLEU",
            "tokenized BLEU",
            "paper BLEU",
            "built-in captions",
            "toy:test:30",
        )
    )


@pytest.mark.parametrize(("ratio", "noted"), [(0.8, True), (0.95, False), (1.2, True)])
def test_outputs_of_another_length_than_the_references_are_noted(finished, ratio, noted):
    workdir, _ = finished
    assert main(["evaluate", f"--workdir={workdir}", "--config.mesh.data=-1", "--step=4"]) == 0
    record = json.loads((workdir / "eval" / "test-4.json").read_text())
    bleu = record["scores"]["sacrebleu"]
    assert bleu["length_ratio"] == pytest.approx(
        bleu["hypothesis_length"] / bleu["reference_length"], abs=1e-4
    )
    for entry in record["scores"].values():
        if isinstance(entry, dict) and "length_ratio" in entry:
            entry["length_ratio"] = ratio
    config = stored_config(workdir)
    assert ("config.decode.alpha" in summary(record, task_of(config))) == noted
    greedy = stored_config(workdir, {"decode.strategy": "greedy"})
    assert "config.decode.alpha" not in summary(record, task_of(greedy)), "it would be refused"
