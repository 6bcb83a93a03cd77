"""`translate_file` resumes after a stop or a kill.

The model is a stand-in that answers in capitals.
"""

import itertools
import json
import os
import signal
import sys

import pytest
from helpers import capitals_run
from helpers.capitals_run import stop_at_window
from helpers.foreign_files import HEX32, content, put_beside
from helpers.refusals import assert_names

from t2t_flax.__main__ import main
from t2t_flax.distributed.signals import PROGRESS
from t2t_flax.locks import exclusive_writer


@pytest.fixture
def run(monkeypatch, tmp_path):
    return capitals_run.use(monkeypatch, tmp_path)


@pytest.fixture
def t2t(monkeypatch, capsys):
    return capitals_run.command("translate_file", monkeypatch, capsys)


@pytest.mark.smoke
@pytest.mark.parametrize("n_best", [1, 2])
def test_resumed_output_equals_an_uninterrupted_one(run, t2t, tmp_path, n_best, monkeypatch):
    # A launcher restarts what has saved something.
    monkeypatch.setenv(PROGRESS, str(tmp_path / "saved"))
    (tmp_path / "in").write_text("".join(f"line {i}\n" for i in range(11)))
    (tmp_path / "starts").write_text("".join(f"{i}: \n" for i in range(11)))
    command = ["--input=in", "--prefix=starts", f"--n-best={n_best}", "--scores"]
    t2t(*command, "--output=whole")
    (tmp_path / "saved").unlink()
    stop_at_window(run, 2, signal.SIGHUP)
    _, err = t2t(*command, "--output=out", code=75)
    assert_names(err, "SIGHUP", "8 lines", "--resume")
    assert (tmp_path / "saved").exists()
    with open(tmp_path / "out.partial", "a") as file:
        file.write("half a li")  # as after a crash in the middle of a write
    run.windows.clear()
    run.before_window = lambda n: None
    _, err = t2t(*command, "--output=out", code=2)
    assert_names(err, "--resume")
    t2t(*command, "--output=out", "--resume")
    assert [first for first, _ in run.windows] == [8]
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not list(tmp_path.glob("*.partial*"))


def test_lines_after_a_stop_that_all_fail_are_named(run, t2t, tmp_path):
    (tmp_path / "in").write_text("a\nb\nc\nd\nno\nno\n")
    stop_at_window(run, 1)
    t2t("--input=in", "--output=out", code=75)
    run.before_window, run.refused = lambda number: None, ("no",)
    _, err = t2t("--input=in", "--output=out", "--resume", code=2)
    assert_names(err, "line 5")
    assert (tmp_path / "out").read_text() == "A\nB\nC\nD\n\n\n"


def test_a_line_that_failed_before_the_stop_counts(run, t2t, tmp_path):
    (tmp_path / "in").write_text("a\nno\nc\nd\ne\n")
    stop_at_window(run, 1)
    run.refused = ("no",)
    t2t("--input=in", "--output=out", code=75)
    run.before_window = lambda number: None
    _, err = t2t("--input=in", "--output=out", "--resume", code=2)
    assert_names(err, "1 of", "4 lines")
    assert (tmp_path / "out").read_text() == "A\n\nC\nD\nE\n"


def test_resume_refuses_other_settings_and_other_input(run, t2t, tmp_path):
    (tmp_path / "in").write_text("a\nb\nc\nd\ne\n")
    stop_at_window(run, 1)
    command = ["--input=in", "--output=out"]
    t2t(*command, code=75)
    run.before_window = lambda n: None
    before = (tmp_path / "out.partial").read_bytes()
    resume = [*command, "--resume"]
    assert_names(t2t(*resume, "--config.decode.beam_size=5", code=2)[1], "decode.beam_size")
    assert_names(t2t(*resume, "--scores", code=2)[1], "--scores")
    run.steps = (40,)
    assert_names(t2t(*resume, code=2)[1], "[20]", "[40]")
    run.steps = (20,)
    for other in ("a\nB\nc\nd\ne\n", "a\nb\n"):
        (tmp_path / "in").write_text(other)
        assert_names(t2t(*resume, code=2)[1], "--resume", "input lines")
    (tmp_path / "out.partial").write_bytes(before[:3])
    assert_names(t2t(*resume, code=2)[1], "out.partial", "3 bytes")
    (tmp_path / "out.partial").write_bytes(before)
    (tmp_path / "in").write_text("a\nb\nc\nd\nother\n")
    t2t(*resume, "--config.decode.batch_size=2")
    assert (tmp_path / "out").read_text() == "A\nB\nC\nD\nOTHER\n"


def test_failure_before_the_first_window_leaves_no_files(run, t2t, tmp_path):
    (tmp_path / "in").write_bytes(b"\xff\n\xfe\n")
    t2t("--input=in", "--output=out", code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert_names(
        t2t("--input=in", "--output=-", "--resume", code=2)[1], "--resume", "--output=FILE"
    )
    (tmp_path / "foreign.partial").write_text("mine")
    (tmp_path / "in").write_text("a\n")
    assert_names(t2t("--input=in", "--output=foreign", code=2)[1], "foreign.partial")
    assert (tmp_path / "foreign.partial").read_text() == "mine"


def test_files_named_like_ours_survive(run, t2t, tmp_path):
    (tmp_path / "in").write_text("a\nb\n")
    ours = ["out.partial.json", f"out.partial.json.partial-{HEX32}"]
    (tmp_path / ours[1]).write_text("half")
    foreign = put_beside(tmp_path, ours) | {"out.lock": "", "out.partial-joined": "mine"}
    for name in ("out.lock", "out.partial-joined"):
        (tmp_path / name).write_text(foreign[name])
    t2t("--input=in", "--output=out")
    assert content(tmp_path) == foreign | {"in": "a\nb\n", "out": "A\nB\n"}


def test_two_processes_do_not_write_the_same_output(run, t2t, tmp_path):
    stop_at_window(run, 1)
    (tmp_path / "in").write_text("a\nb\nc\nd\ne\n")
    t2t("--input=in", "--output=out", code=75)
    with exclusive_writer(tmp_path / "out.partial", "the first"):
        _, err = t2t("--input=in", "--output=out", "--resume", code=2)
        assert_names(err, "out.partial", "the first", str(os.getpid()))
    assert json.loads((tmp_path / "out.partial.json").read_text())["lines"] == 4


@pytest.fixture
def states_after_kills(tmp_path):
    """Runs a function.

    Returns the different contents of `tmp_path` between its steps, as a kill at each would leave
    them.
    """

    def record(function):
        states = []

        def look(frame, event, argument):
            files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
            if not states or states[-1] != files:
                states.append(files)
            return look

        def trace(frame, event, argument):
            return (
                look
                if frame.f_code.co_filename.endswith(("resumable_output.py", "files.py"))
                else None
            )

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(before)
        look(None, "end", None)
        return states

    return record


def test_output_is_consistent_after_a_kill_at_any_point(run, t2t, tmp_path, states_after_kills):
    """--resume ends with the whole output, and what the error without it says leads there too."""
    command = ["--input=in", "--output=out"]
    (tmp_path / "in").write_text("".join(f"line {i}\n" for i in range(10)))
    whole = "".join(f"LINE {i}\n" for i in range(10))
    states = states_after_kills(lambda: t2t(*command))
    assert len(states) > 12 and any(
        "out" in state and "out.partial.json" in state for state in states
    )
    written = [
        (before, after)
        for before, after in itertools.pairwise(states)
        if len(after.get("out.partial", "")) > 3
    ]
    torn = [
        after | {"out.partial": after["out.partial"][:-3]}
        for before, after in written
        if before.get("out.partial") != after["out.partial"]
    ]
    for state in states + torn:
        for flags in (["--resume"], []):
            for path in tmp_path.iterdir():
                path.unlink()
            for name, data in state.items():
                (tmp_path / name).write_bytes(data)
            code = main(["translate_file", "--workdir=w", *command, *flags])
            if code == 2 and not flags:  # follow the advice
                (tmp_path / "out.partial").unlink()
                code = main(["translate_file", "--workdir=w", *command])
            assert code == 0 and (tmp_path / "out").read_text() == whole, (sorted(state), flags)
            assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"], (
                sorted(state),
                flags,
            )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"lines": 4}', '{"settings": 1, "lines": 1, "bytes": 2}']
)
def test_damaged_record_says_what_to_remove(run, t2t, tmp_path, text):
    (tmp_path / "in").write_text("a\n")
    (tmp_path / "out.partial").write_text("A\n")
    (tmp_path / "out.partial.json").write_text(text)
    _, err = t2t("--input=in", "--output=out", "--resume", code=2)
    assert_names(err, "out.partial.json")
    (tmp_path / "out.partial").unlink()
    t2t("--input=in", "--output=out", "--resume")
    assert (tmp_path / "out").read_text() == "A\n"
