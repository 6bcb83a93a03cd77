"""One run of several directions.

Validation, the choice of the target language, records and their table.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from helpers.refusals import refused, refused_command
from helpers.runs import DIRECTIONS, LANGUAGES, SHORT_SEARCH, start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.data.sources import toy
from t2t_flax.data.tokenizers import SentencePieceTokenizer, TokenizerPair
from t2t_flax.evaluation.direction_table import direction_table
from t2t_flax.evaluation.evaluate import compute_scores, evaluate, validation_score
from t2t_flax.evaluation.restore import load
from t2t_flax.training import loop
from t2t_flax.training.train_state import init_state
from t2t_flax.training.validation import validation_loss

DATA = DIRECTIONS | dict(
    valid="en-de=toy:valid:12; de-en=toy:valid:9",
    test="en-de=toy:test:6; de-en=toy:test:5; same=toy:test:4",
)
LINES = [source for source, _ in toy.pairs("test", 5)]


def config_of(steps=6, **groups):
    keys = dict(
        data=DATA,
        languages=LANGUAGES,
        eval=dict(every_steps=3),
        checkpoint=dict(every_steps=3, keep_best=1),
    )
    return tiny_run(
        "",
        steps=steps,
        **{name: keys.get(name, {}) | groups.get(name, {}) for name in keys | groups},
    )


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("directions")
    loop.train(start(config_of(), folder, cache), score=None)
    return folder


@pytest.fixture(scope="module")
def run(workdir):
    return load(workdir, overrides=SHORT_SEARCH)


def test_validation_is_that_of_each_source_alone_and_their_mean(tmp_path, cache):
    """The loss of a set among several equals, bit for bit, that of a run with this set only."""
    both = start(config_of(), tmp_path / "both", cache)
    params = init_state(both.config, both.model, both.tx, both.parametrization, both.mesh)[0].params
    values = validation_loss(both)(params, lambda: None)
    alone = {}
    for name in ("en-de", "de-en"):
        spec = dict(part.strip().split("=") for part in DATA["valid"].split(";"))[name]
        one = start(config_of(data=dict(valid=f"{name}={spec}")), tmp_path / name, cache)
        alone[name] = validation_loss(one)(params, lambda: None)
        for metric in ("nll", "loss", "accuracy"):
            assert (
                values[f"{metric}/{name}"] == alone[name][metric] == alone[name][f"{metric}/{name}"]
            )
    for metric in ("nll", "loss", "accuracy"):
        assert values[metric] == np.mean([alone[name][metric] for name in alone])


def test_decoding_validates_each_direction_with_its_own_languages(workdir, cache, tmp_path):
    setup = start(config_of(eval=dict(decode_sentences=3)), tmp_path, cache)
    params = init_state(setup.config, setup.model, setup.tx, setup.parametrization, setup.mesh)[
        0
    ].params
    values = validation_score(setup)(params)
    names = "valid_bleu", "valid_length_ratio"
    assert set(values) == {f"{n}{of}" for n in names for of in ("", "/en-de", "/de-en")}
    assert values["valid_bleu"] == pytest.approx(
        (values["valid_bleu/en-de"] + values["valid_bleu/de-en"]) / 2
    )


def to(language, lines=LINES):
    return [f"<2{language}> {line}" for line in lines]


def test_the_target_language_decides_and_batch_mates_do_not(run):
    lines = [
        f"<2{language}> {line}"
        for line, language in zip(LINES, ["de", "en", "de", "en", "en"], strict=True)
    ]
    for line, together in zip(lines, run.translate(lines), strict=True):
        (alone,) = run.translate([line])
        assert alone.hypotheses[0].tokens == together.hypotheses[0].tokens
        assert alone.hypotheses[0].score == pytest.approx(together.hypotheses[0].score, rel=1e-5)
    scores = {
        language: run.score(list(zip(to(language), LINES, strict=True)))
        for language in ("de", "en")
    }
    assert all(a.log_prob != b.log_prob for a, b in zip(scores["de"], scores["en"], strict=True))
    both = run.score([(f"<2{language}> {LINES[0]}", LINES[0]) for language in ("de", "en")])
    assert [s.log_prob for s in both] == pytest.approx(
        [scores["de"][0].log_prob, scores["en"][0].log_prob], rel=1e-5
    )


def test_the_choice_is_required_and_checked(workdir, run):
    for call in (lambda: run.translate(LINES), lambda: run.score([("a", "b")])):
        with refused("<2de>"):
            call()
    with refused("'fr'", "de, en"):
        run.in_language("a", "fr")
    assert run.in_language("a", "en") == "<2en> a" and run.in_language("<2de> a", "en") == "<2de> a"
    assert run.in_language(" ", "en") == " " and run.translate([""])[0].text == ""
    translate = ["translate", f"--workdir={workdir}"]
    refused_command([*translate, "--input=/dev/null", "--target-language=fr"], "'fr'", "de, en")
    refused_command([*translate, f"--input={__file__}"], "--target-language=de")


@pytest.mark.parametrize("line", ["<2de>", "<2de> ", "<2de> \u200b"])
def test_a_line_without_text_stays_empty(run, line):
    assert run.translate([line])[0].text == ""
    with refused("pair 1", "source"):
        run.score([(line, "a")])


def test_the_only_language_need_not_be_named(run):
    symbols = {"<2en>": run.tokenizers.source.control_symbols["<2en>"]}
    source = SentencePieceTokenizer(run.tokenizers.source.data)
    source.control_symbols = symbols
    one = dataclasses.replace(run, tokenizers=TokenizerPair(source, run.tokenizers.target))
    assert one.in_language("a") == "<2en> a"
    source = SentencePieceTokenizer(run.tokenizers.source.data)
    source.control_symbols = {}
    plain = dataclasses.replace(run, tokenizers=TokenizerPair(source, run.tokenizers.target))
    assert plain.in_language("a") == plain.in_language("a", "de") == "a"
    with refused("'fr'", "de"):
        plain.in_language("a", "fr")


def test_commands_take_the_target_language(workdir, tmp_path, run):
    (tmp_path / "in").write_text("".join(line + "\n" for line in LINES))
    flags = [f"--config.{key}={value}" for key, value in SHORT_SEARCH.items()]
    words = [f"--workdir={workdir}", "--target-language=en", *flags]
    output = tmp_path / "out"
    assert main(["translate", *words, f"--input={tmp_path / 'in'}", f"--output={output}"]) == 0
    expected = [t.text for t in run.translate(to("en"))]
    assert output.read_text().splitlines() == expected
    aligned = [
        *words,
        "--alignments=hard",
        "--config.alignments.layer=1",
        f"--output={tmp_path / 'aligned'}",
    ]
    assert main(["translate", *aligned, f"--input={tmp_path / 'in'}"]) == 0
    assert [
        line.split(" ||| ")[0] for line in (tmp_path / "aligned").read_text().splitlines()
    ] == expected
    scores = tmp_path / "scores"
    pair = f"--source={tmp_path / 'in'}", f"--target={tmp_path / 'in'}"
    assert main(["score", *words, *pair, f"--output={scores}"]) == 0
    expected = run.score(list(zip(to("en"), LINES, strict=True)))
    printed = [float(line.split("\t")[0]) for line in scores.read_text().splitlines()]
    assert printed == pytest.approx([s.log_prob for s in expected], abs=1e-5)


def test_records_have_the_languages_of_their_direction(workdir, tmp_path, run, capsys):
    copy = shutil.copytree(workdir, tmp_path / "copy")
    flags = [f"--config.{key}={value}" for key, value in SHORT_SEARCH.items()]
    assert main(["evaluate", f"--workdir={copy}", *flags]) == 0
    printed = capsys.readouterr().out
    records = {
        path.stem.partition("-6")[0]: json.loads(path.read_text())
        for path in (copy / "eval").glob("*.json")
    }
    assert set(records) == {"en-de", "de-en", "same"}
    for name, (source, target) in {
        "en-de": ("en", "de"),
        "de-en": ("de", "en"),
        "same": ("en", "de"),
    }.items():
        data = records[name]["data"]
        assert (data["direction"], data["zero_shot"]) == (f"{source}-{target}", False)
        config = records[name]["config"]["data"]
        assert (config["source_language"], config["target_language"]) == (source, target)
    table = [line for line in printed.splitlines() if line.startswith("| ")]
    assert table[0].startswith("| direction | set | sacreBLEU") and len(table) == 6
    assert table[-1].startswith("| mean of 3 directions with training text |")
    again = evaluate(dataclasses.replace(run, workdir=copy), "de-en")[0]
    assert again["hypotheses"].startswith("de-en-6"), "one evaluation, one record"
    assert len(list((copy / "eval").glob("de-en-*.json"))) == 1


def test_validation_sets_are_evaluated_by_name(workdir, tmp_path, run, monkeypatch):
    copy, scored = shutil.copytree(workdir, tmp_path / "copy"), []

    def scores(config, metrics, predictions, **options):
        scored.append(predictions)
        return compute_scores(config, metrics, predictions, **options)

    monkeypatch.setattr("t2t_flax.evaluation.evaluate.compute_scores", scores)
    record, triples = evaluate(dataclasses.replace(run, workdir=copy), "valid.de-en")
    assert record["split"] == "valid.de-en" and record["data"]["direction"] == "de-en"
    english, german = next(toy.pairs("valid", 1))
    assert triples[0][:2] == (f"<2en> {german}", english)
    assert scored[0].sources[0] == german, "symbols are no text that a metric reads"


def test_a_direction_without_training_text_is_zero_shot(run, tmp_path):
    """German to German: no source has it, and the model has its token."""
    (tmp_path / "t.tsv").write_text("Ja.\tJa.\nNein.\tNein.\n")
    keys = {
        "data.test": "zero=t.tsv",
        "data.root": str(tmp_path),
        "languages.directions": "by_name, zero=de-de",
    }
    zero = dataclasses.replace(run, config=run.config.with_values(keys), workdir=tmp_path)
    record, _ = evaluate(zero, "zero")
    assert record["data"]["zero_shot"] is True and record["data"]["direction"] == "de-de"


def test_the_table_keeps_zero_shot_apart():
    def record(direction, bleu, zero_shot=False, ter=True):
        scores = {
            "sacrebleu": {"score": bleu, "signature": "nrefs:1|tok:13a|x:y"},
            "chrf": {"score": 1.0},
        }
        scores |= {"ter": {"score": 90.0}} if ter else {}
        return {
            "split": direction,
            "scores": scores,
            "data": {"direction": direction, "zero_shot": zero_shot},
        }

    rows = [
        record("en-de", 10.0),
        record("de-fr", 2.0, True),
        record("fr-en", 20.0),
        record("en-th", 6.0, ter=False),
    ]
    assert direction_table(rows).splitlines() == [
        "| direction | set | sacreBLEU | chrF | tokenizer of sacreBLEU |",
        "| --- | --- | ---: | ---: | --- |",
        "| en-de | en-de | 10.00 | 1.00 | 13a |",
        "| fr-en | fr-en | 20.00 | 1.00 | 13a |",
        "| en-th | en-th | 6.00 | 1.00 | 13a |",
        "| mean of 3 directions with training text |  | 12.00 | 1.00 |  |",
        "| de-fr (zero-shot) | de-fr | 2.00 | 1.00 | 13a |",
    ]
    plain = {"split": "test", "scores": {}, "data": {}}
    assert direction_table([plain, plain]) == ""
