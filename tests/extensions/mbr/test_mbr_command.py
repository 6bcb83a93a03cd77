"""`mbr` on the command line: files, samples of a run, records and messages."""

import json
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from helpers import capitals_run
from helpers.runs import start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.data.sources import toy
from t2t_flax.errors import UserError
from t2t_flax.extensions.mbr.candidates import read_candidates
from t2t_flax.training import loop

FLAT = ["a dog runs", "a dog runs .", "the cat", "yes", "", "yes"]
BEST = ["a dog runs", "yes"]  # of three candidates each


@pytest.fixture
def write(tmp_path):
    """Writes lines to a file; returns its name."""

    def write(name, lines):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        return str(tmp_path / name)

    return write


def mbr(*words) -> None:
    assert main(["mbr", *words]) == 0


def error(capsys, *words) -> str:
    assert main(["mbr", *words]) == 2
    return capsys.readouterr().err


@pytest.mark.smoke
def test_flat_files_and_n_best_lists(write, tmp_path, capsys):
    flat, output = write("flat", FLAT), str(tmp_path / "out")
    mbr(f"--candidates={flat}", "--num-candidates=3", "--utility=bleu", f"--output={output}")
    assert (tmp_path / "out").read_text().splitlines() == BEST
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["utility"]["name"] == "bleu" and record["utility"]["signature"].startswith("nrefs:1|")
    assert (record["candidates"]["file"], record["candidates"]["sources"], record["candidates"]["most"]) == (flat, 2, 3)
    assert "scores" not in record and "expected bleu" in capsys.readouterr().out
    lists = write("lists", [f"{i // 3} ||| {text} ||| -0.5" for i, text in enumerate(FLAT)])
    mbr(f"--candidates={lists}", "--utility=bleu", f"--output={output}")
    assert (tmp_path / "out").read_text().splitlines() == BEST
    assert list(read_candidates(write("l", ["0 ||| a ||| b", "1 ||| c", "1 |||  ||| -1.0"]), None)) == [
        [("a ||| b", None)],
        [("c", None), ("", -1.0)],
    ]


@pytest.mark.skipif(find_spec("fastchrf") is None, reason="fastchrf is not installed")
def test_scores_of_the_kind_of_the_utility_are_marked(write, tmp_path, capsys):
    flat, target = write("flat", FLAT), write("target", ["a dog ran", "yes"])
    for utility, biased in (("chrf", {"chrf", "chrf++"}), ("bleu", {"sacrebleu", "tokenized_bleu", "paper_bleu"})):
        shared = [
            f"--candidates={flat}",
            "--num-candidates=3",
            f"--output={tmp_path / utility}",
            f"--utility={utility}",
        ]
        mbr(*shared, f"--score-against={target}", "--config.eval.bootstrap_samples=20")
        scores = json.loads((tmp_path / f"{utility}.json").read_text())["scores"]
        assert {name for name, entry in scores.items() if "biased" in entry} == biased & set(scores)
        assert {"ter", "chrf", "sacrebleu"} <= set(scores)
        assert f"biased: chosen by {utility}" in capsys.readouterr().out


def test_scores_of_single_candidates_are_not_marked(write, tmp_path):
    """Nothing was chosen: so any output can be scored."""
    flat, target = write("flat", ["a dog runs", "yes"]), write("target", ["a dog ran", "yes"])
    mbr(
        f"--candidates={flat}", "--num-candidates=1", "--utility=bleu", f"--output={tmp_path / 'out'}",
        f"--score-against={target}", "--config.eval.bootstrap_samples=20",
    )  # fmt: skip
    scores = json.loads((tmp_path / "out.json").read_text())["scores"]
    assert scores and not any("biased" in entry for entry in scores.values())


def test_other_references_decide(write, tmp_path):
    flat, references = write("flat", FLAT), write("refs", ["the cat", "no"])
    words = [f"--candidates={flat}", "--num-candidates=3", "--utility=bleu", f"--output={tmp_path / 'out'}"]
    mbr(*words, f"--references={references}", "--num-references=1")
    assert (tmp_path / "out").read_text().splitlines() == ["the cat", "yes"]


def test_lines_are_those_that_translate_reads_and_metrics_get_the_sentences(monkeypatch, tmp_path, capsys):
    pytest.importorskip("t2t_flax.extensions.languages")
    run = capitals_run.use(monkeypatch, tmp_path)
    run.tokenizers.source, scored = SimpleNamespace(split=lambda line: ([], line.removeprefix("[cs]"))), []
    monkeypatch.setattr(
        "t2t_flax.extensions.mbr.command._scores",
        lambda *args: (scored.extend([args[0].data.target_language, *args[3]]), ({}, ""))[1],
    )
    (tmp_path / "in").write_text("a\nb\n\nc\n")
    flags = "--target-language=cs", "--input=in", "--output=out", "--num-candidates=2", "--utility=bleu"
    mbr = capitals_run.command("mbr", monkeypatch, capsys)
    mbr(*flags, "--score-against=in")
    assert run.windows == [(0, ["[cs]a", "[cs]b", "[cs]", "[cs]c"])]
    assert scored == ["cs", "a", "b", "", "c"], "metrics are those of the target language"
    assert json.loads((tmp_path / "out.json").read_text())["candidates"]["--target-language"] == "cs"


def test_wrong_files_and_flags_are_named(write, tmp_path, capsys):
    flat, out = write("flat", FLAT), f"--output={tmp_path / 'out'}"
    assert "say where the candidates come from" in error(capsys, out)
    assert "--workdir needs the lines" in error(capsys, out, "--workdir=w")
    for flag in ("--references=absent", "--score-against=absent"):  # before anything is restored or decoded
        assert "no file absent" in error(capsys, out, "--workdir=w", f"--input={flat}", flag)
    assert "for candidates of --workdir" in error(capsys, out, f"--candidates={flat}", "--input=x")
    if find_spec("t2t_flax.extensions.languages"):
        wrong = error(capsys, out, f"--candidates={flat}", "--target-language=de")
        assert "--target-language: for candidates of --workdir alone" in wrong
    assert "6 lines, which is no multiple of 4" in error(
        capsys, out, f"--candidates={flat}", "--num-candidates=4", "--utility=bleu"
    )
    assert "line 1: expected `N ||| translation`" in error(capsys, out, f"--candidates={flat}", "--utility=bleu")
    gap = write("gap", ["0 ||| a", "2 ||| b"])
    assert "line 2: a translation of line 2 after those of 0" in error(
        capsys, out, f"--candidates={gap}", "--utility=bleu"
    )
    some = [f"--candidates={flat}", "--num-candidates=3", "--utility=bleu", out]
    one, three = write("one", ["a"]), write("three", ["a"] * 3)
    for name, message in ((one, "references of 1 sources"), (three, "references of more than the 2 sources")):
        assert message in error(capsys, *some, f"--references={name}", "--num-references=1")
        assert "candidates of 2 sources" in error(capsys, *some, f"--score-against={name}")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="no file"):
        read_candidates("absent", 2)


@pytest.mark.slow
def test_samples_of_a_run(tmp_path, cache, write):
    """The candidates are those that `translate` samples; the output is that of their file."""
    config = tiny_run(tmp_path / "run", steps=2, decode=dict(max_length_offset=3), checkpoint=dict(every_steps=2))
    loop.train(start(config, tmp_path / "run", cache), score=None)
    lines = write("lines", [source for source, _ in toy.pairs("test", 5)])
    devices, samples = "--config.mesh.data=-1", tmp_path / "samples"
    run = [f"--workdir={tmp_path / 'run'}", f"--input={lines}", devices, "--config.train.precision=tf32"]
    mbr(*run, "--num-candidates=4", "--utility=bleu", f"--output={tmp_path / 'out'}", f"--write-candidates={samples}")
    drawn = ["--config.decode.strategy=sample", "--config.decode.epsilon=0.02", "--n-best=4"]
    assert main(["translate", *run, *drawn, f"--output={tmp_path / 'nbest'}"]) == 0
    texts = [line.split(" ||| ", 1)[1] for line in (tmp_path / "nbest").read_text().splitlines()]
    assert samples.read_text().splitlines() == texts and len(texts) == 20
    mbr(f"--candidates={samples}", "--num-candidates=4", "--utility=bleu", f"--output={tmp_path / 'again'}")
    assert (tmp_path / "again").read_text() == (tmp_path / "out").read_text()
    record = json.loads((tmp_path / "out.json").read_text())
    origin = record["candidates"]
    assert (origin["steps"], origin["decode"]["decode.epsilon"], origin["decode"]["decode.n_best"]) == ([2], 0.02, 4)
    assert origin["decode"]["train.precision"] == "tf32"  # whatever else changes translations, too
