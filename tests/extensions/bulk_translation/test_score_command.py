"""`score` and `translate_file` with a real run: output, files and error messages."""

import dataclasses
import os
import signal

import numpy as np
import pytest
from helpers.other_values import with_other_value
from helpers.refusals import assert_names, refused_command
from helpers.runs import SHORT_SEARCH

from t2t_flax.__main__ import main
from t2t_flax.cli import lines as lines_module
from t2t_flax.config.keys import TRANSLATIONS
from t2t_flax.config.schema import fields, keys_that_change
from t2t_flax.data.sources import toy
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.bulk_translation import score as score_command
from t2t_flax.extensions.bulk_translation.line_files import output_settings

PAIRS = list(toy.pairs("test", 3))
LINES = [source for source, _ in PAIRS]
DEVICES = "--config.mesh.data=-1"


@pytest.fixture
def files(tmp_path):
    """Writes lines to a named file; returns its path."""

    def write(name, lines):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        return tmp_path / name

    return write


def test_score_writes_a_line_for_each_pair(workdir, files, tmp_path, capsys):
    source, target = files("a.en", [s for s, _ in PAIRS]), files("a.de", [t for _, t in PAIRS])
    out = tmp_path / "scores"
    command = ["score", f"--workdir={workdir}", f"--source={source}", f"--target={target}", DEVICES]
    assert main([*command, f"--output={out}", "--tokens"]) == 0
    for line in out.read_text().splitlines():
        total, count, mean, tokens = line.split("\t")
        assert int(count) == len(tokens.split(" ")) and tokens.split(" ")[-1].startswith("</s>:")
        assert float(total) == pytest.approx(int(count) * float(mean), abs=1e-4)
    assert main(command) == 0
    assert [line.split("\t")[:2] for line in capsys.readouterr().out.splitlines()] == [
        line.split("\t")[:2] for line in out.read_text().splitlines()
    ]


def test_score_refuses_wrong_input(workdir, files, tmp_path):
    source, target = (
        f"--source={files('b.en', ['One.', 'Two.'])}",
        f"--target={files('b.de', ['Eins.', 'Zwei.'])}",
    )
    score = ["score", f"--workdir={workdir}", DEVICES]
    refused_command([*score, f"--source={tmp_path / 'none'}", target], str(tmp_path / "none"))
    refused_command(score, "--source")
    refused_command(["score", f"--workdir={tmp_path}", source, target], str(tmp_path))
    three, output = f"--target={files('c.de', ['Eins.', 'Zwei.', 'Drei.'])}", tmp_path / "no"
    names = ["b.en", "2 lines", "c.de", "no.partial"]
    refused_command([*score, source, three, f"--output={output}"], *names)
    assert not output.exists()


def test_pairs_that_cannot_be_scored_have_a_line_and_are_named(workdir, files, tmp_path, capsys):
    sources = ["One.", "Two.", "", "Four.", "wörd " * 2000, "Six."]
    targets = ["Eins.", "", "Drei.", "Wort " * 2000, "Fünf.", "Sechs."]
    command = ["score", f"--workdir={workdir}", DEVICES, f"--source={files('s', sources)}"]
    assert main([*command, f"--target={files('t', targets)}", "--tokens"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split("\t") for line in out.splitlines()]
    assert [i for i, row in enumerate(rows, 1) if row == ["nan", "0", "nan", ""]] == [2, 3, 4, 5]
    assert all(np.isfinite(float(rows[i][0])) for i in (0, 5)) and {len(row) for row in rows} == {4}
    assert_names(err, "4 of", "line 2", "3 (the", "4 (the", "5 (the")
    good = ["score", f"--workdir={workdir}", DEVICES, f"--source={files('s', ['One.', 'Six.'])}"]
    assert main([*good, f"--target={files('t', ['Eins.', 'Sechs.'])}", "--tokens"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == [
        rows[0][0],
        rows[5][0],
    ]


def test_a_line_that_is_not_utf8_is_one_without_a_score(workdir, files, tmp_path, capsys):
    files("s", ["One.", "Two.", "Three."])
    (tmp_path / "t").write_bytes(b"Eins.\nZw\xffei.\nDrei.\n")
    command = [
        "score",
        f"--workdir={workdir}",
        DEVICES,
        f"--source={tmp_path}/s",
        f"--target={tmp_path}/t",
    ]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert [line.startswith("nan\t0") for line in out.splitlines()] == [False, True, False]
    assert_names(err, "line 2", "byte 3", "0xff")


def test_score_reads_no_further_than_a_window_and_resumes(
    workdir, files, tmp_path, capsys, monkeypatch
):
    pairs = list(toy.pairs("train", 200))
    source, target = files("w.en", [s for s, _ in pairs]), files("w.de", [t for _, t in pairs])
    monkeypatch.setattr(lines_module, "WINDOW_BATCHES", 2)
    devices = [DEVICES, "--config.mesh.fsdp=2"]
    command = [
        "score",
        f"--workdir={workdir}",
        *devices,
        "--config.decode.batch_size=8",
        f"--target={target}",
    ]
    window = 2 * 8 * 2
    assert main([*command, f"--source={source}", f"--output={tmp_path / 'whole'}"]) == 0
    read, real, stop_after, scored = [], lines_module.iterate_lines, 2, []

    def iterate_lines(name, **options):
        for line in real(name, **options):
            read.append(name)
            yield line

    def score_each(run, pairs, progress):
        scored.append(len(pairs))
        assert len(read) <= 2 * ((len(scored) + 1) * window + 2)
        if len(scored) > stop_after:
            os.kill(os.getpid(), signal.SIGTERM)
        return score(run, pairs, progress)

    score = score_command.score_each
    monkeypatch.setattr(lines_module, "iterate_lines", iterate_lines)
    monkeypatch.setattr(score_command, "score_each", score_each)
    capsys.readouterr()
    assert main([*command, f"--source={source}", f"--output={tmp_path / 'out'}"]) == 75
    assert_names(capsys.readouterr().err, f"{2 * window} lines", "--resume")
    stop_after, scored, read = 1000, [], []
    resume = [*command, f"--source={source}", f"--output={tmp_path / 'out'}", "--resume"]
    refused_command([*resume, "--tokens"], "--tokens")
    monkeypatch.setattr(lines_module, "iterate_lines", real)
    monkeypatch.setattr(
        score_command,
        "score_each",
        lambda run, pairs, progress: scored.append(len(pairs)) or score(run, pairs, progress),
    )
    assert main(resume) == 0 and sum(scored) == len(pairs) - 2 * window
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_what_changes_a_translation_is_a_setting_of_the_output(workdir):
    """Of all keys of data and decode: those that are no setting change nothing. Two settings do."""

    def output(config):
        translations = dataclasses.replace(run, config=config).translate(LINES)
        return [(h.text, h.score) for t in translations for h in t.hypotheses]

    def settings(config):
        return output_settings(dataclasses.replace(run, config=config), {})

    run = load(workdir, overrides=SHORT_SEARCH | {"mesh.data": "-1"})
    config = dataclasses.replace(
        run.config, data=dataclasses.replace(run.config.data, train="en-de=toy:train:300")
    )
    expected, names = output(config), settings(config)
    assert (
        set(keys_that_change(TRANSLATIONS)) <= set(names)
        and names["type of the products"] == "float32"
    )
    for key in ("data.source_eos", "decode.n_best"):
        assert (
            output(with_other_value(config, key)) != expected
            and settings(with_other_value(config, key)) != names
        )
    assert settings(with_other_value(config, "train.precision")) != names
    for key in fields():
        if key.startswith(("data.", "decode.")) and key not in keys_that_change(TRANSLATIONS):
            other = with_other_value(config, key, check=False).with_values(
                {"languages.directions": ""}
            )
            assert output(other) == expected, key


def test_pipes_are_read_like_files(workdir, files, tmp_path, capsys):
    """Like `--source=<(echo ...)`; each pipe is read once."""
    source, target = PAIRS[0]
    command = ["score", f"--workdir={workdir}", DEVICES]
    assert (
        main(
            [*command, f"--source={files('p.en', [source])}", f"--target={files('p.de', [target])}"]
        )
        == 0
    )
    expected = capsys.readouterr().out
    ends = []
    for line in (source, target):
        end, writing = os.pipe()
        os.write(writing, f"{line}\n".encode())
        os.close(writing)
        ends.append(end)
    assert main([*command, f"--source=/dev/fd/{ends[0]}", f"--target=/dev/fd/{ends[1]}"]) == 0
    assert capsys.readouterr().out == expected
    pipes = [f"/dev/fd/{end}" for end in ends]
    refused_command([*command, f"--source={pipes[0]}", f"--target={pipes[0]}"], pipes[0])
    refused_command([*command, "--source=-", "--target=-"], "pipe")
    refused_command(
        [*command, f"--source={tmp_path}", f"--target={tmp_path / 'p.de'}"], str(tmp_path)
    )
    refused_command(
        ["evaluate", f"--workdir={workdir}", f"--config.data.test={','.join(pipes)}"], pipes[0]
    )
    for end in ends:
        os.close(end)
