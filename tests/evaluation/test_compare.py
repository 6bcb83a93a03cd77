"""Paired comparison of two records: results and refused inputs."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.records import record
from helpers.scores import score_translations, translation_config
from sacrebleu.significance import PairedTest

from t2t_flax.__main__ import main
from t2t_flax.data.dataset import split_source
from t2t_flax.errors import UserError
from t2t_flax.evaluation.compare import compare, describe
from t2t_flax.evaluation.evaluate import evaluate, existing_record
from t2t_flax.evaluation.restore import load, stored_config
from t2t_flax.tasks import task_of
from t2t_flax.tasks.translation.metrics import METRICS, recipe
from t2t_flax.training.checkpoint_selection import Choice

REFERENCES = [
    f"Der {a} Mann sieht {n} Hunde und die Frau sieht ihn." for a in ("alte", "junge", "große") for n in range(2, 42)
]
BAD = [r if i % 2 else r.replace("die Frau", "das Kind") for i, r in enumerate(REFERENCES)]
GOOD = [r if i % 10 else r.replace("ihn", "sie") for i, r in enumerate(REFERENCES)]


def write(folder, name, hypotheses, references=REFERENCES, **described):
    return record(folder, name, hypotheses, references, **described)


def test_system_compared_with_itself_has_no_difference(tmp_path):
    a, b = write(tmp_path, "a", BAD), write(tmp_path, "b", BAD)
    result = compare(a, b)
    assert result["difference"] == 0 and result["p_value"] == 1
    assert result["interval"] == {"level": 0.95, "low": 0, "high": 0} and result["a_better"] == 0


def test_clearly_better_system_is_significant(tmp_path):
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", BAD)
    result, reverse = compare(a, b), compare(b, a)
    assert result["p_value"] < 0.05 and result["a_better"] == 1
    assert 0 < result["interval"]["low"] < result["difference"] < result["interval"]["high"]
    for key, hypotheses in (("a", GOOD), ("b", BAD)):
        expected = score_translations(hypotheses, [REFERENCES], names=["sacrebleu"])["sacrebleu"]["score"]
        assert result[key]["score"] == expected
    assert reverse["difference"] == -result["difference"] and reverse["p_value"] == result["p_value"]
    text = describe(result)
    assert (
        str(a) in text and "sacreBLEU" in text and "1000 resamples" in text and f"{result['difference']:+.2f}" in text
    )


def test_difference_of_two_sentences_is_not_significant(tmp_path):
    near = [r.replace("Hunde", "Tiere") if i in (7, 50) else r for i, r in enumerate(BAD)]
    mixed = [r.replace("ihn", "es") if i == 20 else r for i, r in enumerate(BAD)]
    result = compare(write(tmp_path, "a", near), write(tmp_path, "b", mixed))
    assert result["p_value"] > 0.05 and result["interval"]["low"] < 0 < result["interval"]["high"]


@pytest.mark.parametrize("score", [metric.name for metric in METRICS if metric.statistics])
def test_sacrebleu_p_value_has_its_own_key(tmp_path, monkeypatch, score):
    slightly = [r.replace("und", "oder") if i % 4 == 0 else r for i, r in enumerate(GOOD)]
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", slightly)
    result = compare(a, b, score=score, resamples=200, seed=5)
    chosen = recipe(score, translation_config())
    monkeypatch.setenv("SACREBLEU_SEED", "5")
    systems = [("b", chosen.prepare(slightly)), ("a", chosen.prepare(GOOD))]
    signatures, results = PairedTest(systems, {"it": chosen.metric()}, [chosen.prepare(REFERENCES)], "bs", 200)()
    (expected,) = (result for name, result in results.items() if name != "System")
    (signature,) = signatures.values()
    assert result["p_value_sacrebleu"] == pytest.approx(expected[1].p_value, abs=1e-6)
    assert (result["b"]["score"], result["a"]["score"]) == pytest.approx([r.score for r in expected], abs=1e-4)
    assert result["signature"] == str(signature) and "bs:200|seed:5" in result["signature"]
    assert chosen.method in result["how"] and "one-sided" in result["how"]


def test_bootstrap_depends_only_on_its_seed(tmp_path, monkeypatch):
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", BAD)
    result = compare(a, b, resamples=50)
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    assert compare(a, b, resamples=50) == result
    assert compare(a, b, resamples=50, seed=1)["interval"] != result["interval"]


def test_tokenized_systems_are_compared_detokenized(tmp_path):
    data = {"pretokenized": True}
    tokens = [[line.replace(".", " .") for line in lines] for lines in (GOOD, BAD, REFERENCES)]
    a, b = (
        write(tmp_path, name, t, references=tokens[2], data=data) for name, t in (("a", tokens[0]), ("b", tokens[1]))
    )
    plain = compare(write(tmp_path, "c", GOOD), write(tmp_path, "d", BAD), resamples=50)
    result = compare(a, b, resamples=50)
    for key in ("difference", "interval", "p_value", "signature"):
        assert result[key] == plain[key]
    assert "detokenized" in result["how"]


def test_different_test_sets_are_refused_and_named(tmp_path):
    a = write(tmp_path, "a", GOOD)
    b = write(tmp_path, "b", BAD[:60], references=REFERENCES[:60], spec="flickr.en,flickr.de")
    with pytest.raises(UserError, match=r"different test sets: .*a\.json of toy:test \(120 sentences.*b\.json of flickr\.en,flickr\.de \(60 sentences"):  # fmt: skip
        compare(a, b)
    named = json.loads(b.read_text())
    named["data"]["corpus"] = "Flickr"
    b.write_text(json.dumps(named))
    with pytest.raises(UserError, match=r"of Flickr, flickr\.en"):
        compare(a, b)
    with pytest.raises(UserError, match="config.data.pretokenized is False in .* and True in"):
        compare(a, write(tmp_path, "c", GOOD, data={"pretokenized": True}))


def test_missing_or_changed_texts_are_refused(tmp_path):
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", BAD)
    with (tmp_path / "b.hyp.txt").open("a") as file:
        file.write("noch eine Zeile\n")
    with pytest.raises(UserError, match=r"b\.hyp\.txt does not match .*b\.json \(121 lines"):
        compare(a, b)
    (tmp_path / "b.hyp.txt").unlink()
    with pytest.raises(UserError, match=r"the hypotheses of .*b\.json are missing: .*b\.hyp\.txt"):
        compare(a, b)
    (tmp_path / "a.ref.txt").unlink()
    with pytest.raises(UserError, match=r"the references of .*a\.json are missing"):
        compare(a, b)


def test_files_that_are_not_records_are_refused(tmp_path):
    a = write(tmp_path, "a", GOOD)
    (tmp_path / "text.json").write_text("Das ist ein Satz.\n")
    (tmp_path / "other.json").write_text('{"step": 3}')
    for name, message in (
        ("none.json", "there is no record .*none.json"),
        ("", "is a folder"),
        ("text.json", "text.json is not an evaluation record: it is not JSON"),
        ("other.json", "other.json is not an evaluation record: it lacks config, data"),
    ):
        with pytest.raises(UserError, match=message):
            compare(a, tmp_path / name)
    old = json.loads(a.read_text())
    del old["references"]
    (tmp_path / "old.json").write_text(json.dumps(old))
    with pytest.raises(UserError, match="stored no references: run `evaluate` again"):
        compare(tmp_path / "old.json", a)


def test_records_are_compared_without_importing_jax(tmp_path):
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", BAD)
    program = "import sys; sys.modules['jax'] = None; from t2t_flax.__main__ import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.run(
        [sys.executable, "-c", program, "evaluate", f"--record={a}", f"--compare={b}", "--compare-score=paper_bleu"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == json.loads(json.dumps(compare(a, b, score="paper_bleu")))


def test_flags_without_effect_are_refused(tmp_path, capsys):
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", BAD)
    for flags, message in (
        ([f"--record={a}"], "needs --compare=OTHER_RECORD.json"),
        ([f"--record={a}", f"--compare={b}", "--step=3", "--config.decode.beam_size=2"], "--step, --config.decode.beam_size has no effect"),
        ([f"--record={a}", "--compare-score=paper_bleu"], "needs --compare=FILE.json"),
        ([f"--record={a}", "--workdir=runs"], "not allowed with"),
        ([], "one of the arguments --workdir --record is required"),
        ([f"--workdir={tmp_path}", "--compare=none.json"], "there is no record none.json"),
    ):  # fmt: skip
        assert main(["evaluate", *flags]) == 2
        assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def run_of_updates(tmp_path_factory, cache):
    from helpers.runs import start, tiny_run

    from t2t_flax.training import loop

    workdir = tmp_path_factory.mktemp("compared")
    config = tiny_run(
        workdir,
        steps=4,
        checkpoint=dict(every_steps=2, keep_last=2),
        data=dict(test="toy:test:30", corpus="built-in captions"),
        eval=dict(bootstrap_samples=0, samples=0),
        decode=dict(beam_size=1, max_length_offset=2),
    )
    loop.train(start(config, workdir, cache), score=None)
    return workdir


@pytest.mark.slow
def test_existing_record_requires_identical_inputs(run_of_updates, monkeypatch):
    """`evaluate` over several runs skips only what would give the same record."""
    overrides = {"mesh.data": "-1"}
    request = dict(split="test", choice=Choice(step=2), overrides=overrides)
    find = lambda **changes: existing_record(run_of_updates, **request | changes)  # noqa: E731
    evaluate(load(run_of_updates, step=2, overrides=overrides), "test")
    path = run_of_updates / "eval" / "test-2.json"
    assert find() == path and find(overrides={}) is None and find(split="valid") is None
    assert find(choice=Choice(step=4)) is None and find(choice=Choice()) is None
    stored = json.loads(path.read_text())
    for change in (
        {"versions": stored["versions"] | {"sacrebleu": "1.0"}},
        {"digests": stored["digests"] | {"tokenizer": "0" * 64}},
        {"digests": stored["digests"] | {"code": "0" * 16}},
        {"digests": stored["digests"] | {"hypotheses": "0" * 64}},
        {"config": {}},
    ):
        path.write_text(json.dumps(stored | change))
        assert find() is None, change
    path.write_text(json.dumps(stored))
    assert find() == path
    (run_of_updates / "eval" / "test-2.ref.txt").unlink()
    assert find() is None


def test_record_of_a_smaller_average_is_not_reused(run_of_updates):
    """The evaluation after `train` averages the existing checkpoints; `evaluate --average=3` would fail."""
    overrides = {"mesh.data": "-1"}
    for count, name in ((3, None), (2, "test-4-mean2.json")):
        evaluate(load(run_of_updates, average=count, at_most=True, overrides=overrides), "test")
        record = existing_record(run_of_updates, "test", Choice(average=count), overrides)
        assert (record and record.name) == name


def test_record_has_all_references_of_a_test_set(run_of_updates, tmp_path):
    pairs = [("the dog sleeps .", "der Hund schläft ."), ("it is late .", "es ist spät .")]
    for name, lines in (
        ("s.en", [source for source, _ in pairs]),
        ("r1.de", [target for _, target in pairs]),
        ("r2.de", ["ein Hund schläft .", "es ist schon spät ."]),
    ):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    overrides = {"mesh.data": "-1", "data.root": str(tmp_path), "data.test": "s.en,r1.de,r2.de"}
    record, triples = evaluate(load(run_of_updates, step=2, overrides=overrides), "test")
    folder = run_of_updates / "eval"
    name = record["hypotheses"].removesuffix(".hyp.txt")
    assert record["references"] == [f"{name}.ref.txt", f"{name}.ref2.txt"]
    for text, file, digest in zip(
        ("r1.de", "r2.de"), record["references"], record["digests"]["references"], strict=True
    ):
        assert (folder / file).read_bytes() == (tmp_path / text).read_bytes()
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest
    assert record["scores"]["sacrebleu"]["signature"].startswith("nrefs:2|")
    assert [(source, reference) for source, reference, _ in triples] == pairs
    existing = existing_record(run_of_updates, "test", Choice(step=2), overrides)
    assert existing and existing.name == f"{name}.json"
    one = evaluate(load(run_of_updates, step=4, overrides=overrides | {"data.test": "s.en,r1.de"}), "test")[0]
    other = one["hypotheses"].removesuffix(".hyp.txt")
    assert one["references"] == f"{other}.ref.txt" and one["scores"]["nll"] > 0
    with pytest.raises(UserError, match="different test sets"):
        compare(folder / f"{name}.json", folder / f"{other}.json")
    with pytest.raises(
        UserError, match=r"data\.train = 's\.en,r1\.de,r2\.de' names 2 targets, but training text is SRC,TGT"
    ):
        split_source(task_of(stored_config(run_of_updates, overrides | {"data.train": "s.en,r1.de,r2.de"})), "train")


def test_evaluate_stores_what_a_comparison_needs(run_of_updates, capsys):
    flags = [f"--workdir={run_of_updates}", "--config.mesh.data=-1"]  # all simulated devices
    assert main(["evaluate", *flags, "--step=2"]) == 0
    first = run_of_updates / "eval" / "test-2.json"
    stored = json.loads(first.read_text())
    assert stored["data"]["corpus"] == "built-in captions" and stored["references"] == "test-2.ref.txt"
    for kind in ("hypotheses", "references"):
        text = (first.parent / stored[kind]).read_bytes()
        assert text.count(b"\n") == 30 and hashlib.sha256(text).hexdigest() == stored["digests"][kind]
    assert {"sacrebleu", "tokenized_bleu", "paper_bleu"} <= set(stored["scores"])
    output = capsys.readouterr().out
    assert all(
        name in output for name in ("sacreBLEU", "tokenized BLEU", "paper BLEU", "built-in captions, toy:test:30")
    )
    assert main(["evaluate", *flags, f"--compare={first}"]) == 0
    second = run_of_updates / "eval" / "test-4.json"
    stored = json.loads(second.read_text())["compare"]
    assert stored == json.loads(json.dumps(compare(second, first)))
    assert stored["a"]["score"] == json.loads(second.read_text())["scores"]["sacrebleu"]["score"]
    assert describe(stored) in capsys.readouterr().out
    assert main(["evaluate", *flags, f"--compare={second}"]) == 2
    assert "is the record that this evaluation would replace" in capsys.readouterr().err
