"""`translate` reads windows, writes them in order, and resumes; the model is a stand-in that answers in capitals."""

import io
import itertools
import json
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from t2t_flax.__main__ import main
from t2t_flax.cli import arguments, line_loop
from t2t_flax.cli.line_windows import arriving_windows, full_windows, paired
from t2t_flax.config import Config, override, resolve, to_config_dict
from t2t_flax.data.languages import Languages
from t2t_flax.decoding.translator import Hypothesis, Translation
from t2t_flax.errors import UserError
from t2t_flax.locks import single_writer


def numbered(lines):
    """The lines as `translate` reads them without --prefix."""
    return paired(lines, None, ("lines", None))


def texts(windows):
    return [[line.text for line in window] for window in windows]


class CapitalsRun:
    """A run whose translations are the lines in capitals. windows: the lines of each call."""

    target_language = None
    languages = Languages()

    def __init__(self, config):
        self.config, self.steps, self.params = config, (20,), {}
        self.tokenizers, self.engine = SimpleNamespace(digest="abc"), SimpleNamespace(name="jax", type="float32")
        self.mesh = SimpleNamespace(shape={"data": 1, "fsdp": 1})
        self.windows, self.before_window = [], lambda number: None

    def translate(self, lines, *, prefixes=None, first_line=0, progress):
        self.before_window(len(self.windows))
        progress(len(lines), len(lines))
        self.windows.append((first_line, list(lines)))
        starts = prefixes or [""] * len(lines)
        texts = [start + line.upper() for start, line in zip(starts, lines, strict=True)]
        n_best = self.config.decode.n_best
        return [
            Translation(tuple(Hypothesis(f"{t}{n or ''}", (), -n, -n, False) for n in range(n_best))) for t in texts
        ]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The stand-in run. It is used in place of any --workdir, with windows of 4 lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(line_loop, "WINDOW_BATCHES", 4)
    run = CapitalsRun(None)

    def load_run(args, overrides):
        values = {"decode.batch_size": "1"} | overrides
        run.config = resolve(override(to_config_dict(Config()), values))
        return run

    monkeypatch.setattr(arguments, "load_run", load_run)
    return run


@pytest.fixture
def t2t(monkeypatch, capsys):
    """Runs `translate` in this process; returns (standard output, standard error)."""

    def run(*flags, stdin=b"", code=0):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        assert main(["translate", "--workdir=w", *flags]) == code, capsys.readouterr()
        return capsys.readouterr()

    return run


def test_windows_are_written_in_input_order(run, t2t):
    lines = [f"line {i}" for i in range(10)] + [""]
    out, _ = t2t(stdin="\n".join([*lines, ""]).encode())
    assert out == "".join(line.upper() + "\n" for line in lines)
    assert [(first, len(window)) for first, window in run.windows] == [(0, 4), (4, 4), (8, 3)]


def test_lines_are_read_no_further_than_the_window():
    read = []

    def lines():
        for i in range(10_000_000):
            read.append(i)
            yield str(i)

    windows = full_windows(numbered(lines()), 100)
    assert next(windows)[-1].text == "99" and len(read) == 100
    arriving = arriving_windows(numbered(lines()), 100)
    assert texts([next(arriving)]) == [[str(i) for i in range(100)]]
    time.sleep(0.2)
    assert len(read) <= 100 + 301


def test_arrived_lines_do_not_wait_for_a_full_window():
    answered, seen = threading.Semaphore(0), []

    def lines():
        for line in ("one", "two", "three"):
            yield line
            assert answered.acquire(timeout=120)  # the next line is typed after the answer

    for window in arriving_windows(numbered(lines()), 100):
        seen.append(window)
        answered.release()
    assert texts(seen) == [["one"], ["two"], ["three"]]


@pytest.mark.parametrize("windows", [full_windows, arriving_windows])
def test_error_of_the_input_follows_the_lines_before_it(windows):
    def lines():
        yield from ("one", "two", "three")
        raise UserError("no more")

    seen = []
    with pytest.raises(UserError, match="no more"):
        seen.extend(windows(numbered(lines()), 2))
    assert texts(seen) == [["one", "two"], ["three"]]


def test_unexpected_error_of_the_reader_is_raised():
    def lines():
        yield "one"
        raise ZeroDivisionError

    windows = arriving_windows(numbered(lines()), 2)
    assert texts([next(windows)]) == [["one"]]
    with pytest.raises(ZeroDivisionError):
        next(windows)


def test_invalid_byte_ends_after_the_lines_before_it(run, t2t, tmp_path):
    data = b"a\nb\nc\nd\ne\nbad \xff\ng\n"
    out, err = t2t(stdin=data, code=2)
    assert out == "A\nB\nC\nD\nE\n" and "standard input line 6, byte 5: 0xff is not UTF-8" in err
    (tmp_path / "in").write_bytes(data)
    _, err = t2t("--input=in", "--output=out", code=2)
    assert "in line 6" in err and "out.partial holds the output of 5 lines" in err
    assert (tmp_path / "out.partial").read_text() == "A\nB\nC\nD\nE\n" and not (tmp_path / "out").exists()
    (tmp_path / "in").write_bytes(data.replace(b" \xff", b""))
    t2t("--input=in", "--output=out", "--resume")
    assert (tmp_path / "out").read_text() == "A\nB\nC\nD\nE\nBAD\nG\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def stop_at_window(run, number):
    run.windows.clear()
    run.before_window = lambda n: os.kill(os.getpid(), signal.SIGTERM) if n == number else None


@pytest.mark.parametrize("n_best", [1, 2])
def test_resumed_output_equals_an_uninterrupted_one(run, t2t, tmp_path, n_best):
    (tmp_path / "in").write_text("".join(f"line {i}\n" for i in range(11)))
    (tmp_path / "starts").write_text("".join(f"{i}: \n" for i in range(11)))
    command = ["--input=in", "--prefix=starts", f"--n-best={n_best}", "--scores"]
    t2t(*command, "--output=whole")
    stop_at_window(run, 2)
    _, err = t2t(*command, "--output=out", code=75)
    assert "stopped by SIGTERM" in err and "output of 8 lines: the same command with --resume" in err
    with open(tmp_path / "out.partial", "a") as file:
        file.write("half a li")  # as after a crash in the middle of a write
    run.windows.clear()
    run.before_window = lambda n: None
    _, err = t2t(*command, "--output=out", code=2)
    assert "go on with --resume, or remove it" in err
    t2t(*command, "--output=out", "--resume")
    assert [first for first, _ in run.windows] == [8]
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not list(tmp_path.glob("*.partial*"))


def test_resume_refuses_other_settings_and_other_input(run, t2t, tmp_path):
    (tmp_path / "in").write_text("a\nb\nc\nd\ne\n")
    stop_at_window(run, 1)
    command = ["--input=in", "--output=out"]
    t2t(*command, code=75)
    run.before_window = lambda n: None
    before = (tmp_path / "out.partial").read_bytes()
    resume = [*command, "--resume"]
    assert "decode.beam_size = 4, now it is 5" in t2t(*resume, "--config.decode.beam_size=5", code=2)[1]
    assert "--scores = false, now it is true" in t2t(*resume, "--scores", code=2)[1]
    run.steps = (40,)
    assert "checkpoints = [20], now it is [40]" in t2t(*resume, code=2)[1]
    run.steps = (20,)
    for other in ("a\nB\nc\nd\ne\n", "a\nb\n"):
        (tmp_path / "in").write_text(other)
        assert "the first 4 input lines are not those" in t2t(*resume, code=2)[1]
    (tmp_path / "out.partial").write_bytes(before[:3])
    assert "has 3 bytes, fewer than the 8" in t2t(*resume, code=2)[1]
    (tmp_path / "out.partial").write_bytes(before)
    (tmp_path / "in").write_text("a\nb\nc\nd\nother\n")
    t2t(*resume, "--config.decode.batch_size=2")
    assert (tmp_path / "out").read_text() == "A\nB\nC\nD\nOTHER\n"


def test_failure_before_the_first_window_leaves_no_files(run, t2t, tmp_path):
    (tmp_path / "in").write_bytes(b"\xff\n")
    t2t("--input=in", "--output=out", code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert "--resume needs --output=FILE" in t2t("--resume", code=2)[1]
    (tmp_path / "foreign.partial").write_text("mine")
    assert "exists, but not by this command" in t2t("--output=foreign", stdin=b"a\n", code=2)[1]
    assert (tmp_path / "foreign.partial").read_text() == "mine"


def test_signal_without_an_output_file_keeps_what_was_written(run, t2t):
    stop_at_window(run, 1)
    out, err = t2t(stdin=b"a\nb\nc\nd\ne\n", code=128 + signal.SIGTERM)
    assert out == "A\nB\nC\nD\n" and err == "t2t_flax translate: stopped by SIGTERM.\n"


@pytest.mark.parametrize(("lines", "starts"), [(9, 5), (5, 9), (4, 5), (4, 0)])
def test_unequal_numbers_of_prefixes_are_an_error(run, t2t, tmp_path, lines, starts):
    (tmp_path / "starts").write_text("x\n" * starts)
    _, err = t2t("--prefix=starts", stdin=b"y\n" * lines, code=2)
    assert f"standard input has {lines} lines and starts {starts}: expected one prefix" in err


def test_long_runs_report_progress(run, t2t, monkeypatch):
    monkeypatch.setattr(line_loop, "PROGRESS_SECONDS", 0.0)
    _, err = t2t(stdin=b"a\nb\nc\nd\ne\n")
    assert [line.split(",")[0] for line in err.splitlines()] == ["translated 4 lines", "translated 5 lines"]


def test_pipe_as_output_receives_each_window(run, t2t, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    t2t("--output=pipe", stdin=b"a\nb\n")
    reader.join(120)
    assert received == ["A\nB\n"]


def test_two_processes_do_not_write_the_same_output(run, t2t, tmp_path):
    stop_at_window(run, 1)
    t2t("--output=out", stdin=b"a\nb\nc\nd\ne\n", code=75)
    with single_writer(tmp_path / "out.partial", "the first"):
        _, err = t2t("--output=out", "--resume", stdin=b"a\n", code=2)
        assert f"out.partial is being written by the first, process {os.getpid()} on" in err
    assert json.loads((tmp_path / "out.partial.json").read_text())["lines"] == 4


def test_signal_while_the_run_is_loaded_stops_after_it(run, t2t, monkeypatch):
    load = arguments.load_run
    monkeypatch.setattr(arguments, "load_run", lambda *a: os.kill(os.getpid(), signal.SIGINT) or load(*a))
    out, err = t2t(stdin=b"a\n", code=128 + signal.SIGINT)
    assert out == "" and "stopped by SIGINT" in err and not run.windows


@pytest.mark.parametrize("output", ["/proc/out", "/proc/no/such/folder/out", "in/out", "."])
def test_impossible_output_is_refused_before_the_run_is_loaded(run, t2t, tmp_path, monkeypatch, output):
    (tmp_path / "in").write_text("a\n")
    monkeypatch.setattr(arguments, "load_run", lambda *a: pytest.fail("was loaded"))
    _, err = t2t("--input=in", f"--output={output}", code=2)
    assert f"--output={output} cannot be written: " in err and "Give another path." in err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_output_in_a_folder_that_does_not_exist_creates_it(run, t2t, tmp_path):
    t2t("--output=new/folder/out", stdin=b"a\n")
    assert (tmp_path / "new/folder/out").read_text() == "A\n"
    assert [path.name for path in (tmp_path / "new/folder").iterdir()] == ["out"]


@pytest.fixture
def states_after_kills(tmp_path):
    """Runs a function; returns the different contents of `tmp_path` between its steps, as a kill at each would leave them."""

    def record(function):
        states = []

        def look(frame, event, argument):
            files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
            if not states or states[-1] != files:
                states.append(files)
            return look

        def trace(frame, event, argument):
            return look if frame.f_code.co_filename.endswith(("resumable_output.py", "filesystem.py")) else None

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
    assert len(states) > 12 and any("out" in state and "out.partial.json" in state for state in states)
    written = [(before, after) for before, after in itertools.pairwise(states) if len(after.get("out.partial", "")) > 3]
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
            code = main(["translate", "--workdir=w", *command, *flags])
            if code == 2 and not flags:  # follow the advice
                (tmp_path / "out.partial").unlink()
                code = main(["translate", "--workdir=w", *command])
            assert code == 0 and (tmp_path / "out").read_text() == whole, (sorted(state), flags)
            assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"], (sorted(state), flags)


def test_record_without_its_output_counts_as_absent(run, t2t, tmp_path):
    (tmp_path / "in").write_text("a\nb\nc\nd\ne\n")
    stop_at_window(run, 1)
    t2t("--input=in", "--output=out", code=75)
    run.before_window = lambda n: None
    (tmp_path / "out.partial").unlink()  # "remove it to start again"
    t2t("--input=in", "--output=out")
    assert (tmp_path / "out").read_text() == "A\nB\nC\nD\nE\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"lines": 4}'])
def test_damaged_record_says_what_to_remove(run, t2t, tmp_path, text):
    (tmp_path / "in").write_text("a\n")
    (tmp_path / "out.partial").write_text("A\n")
    (tmp_path / "out.partial.json").write_text(text)
    _, err = t2t("--input=in", "--output=out", "--resume", code=2)
    assert "out.partial.json is damaged: remove" in err
    (tmp_path / "out.partial").unlink()
    t2t("--input=in", "--output=out", "--resume")
    assert (tmp_path / "out").read_text() == "A\n"


def test_advice_for_an_object_store_names_what_is_there(run, t2t, monkeypatch):
    """There is no --resume for it."""
    stop_at_window(run, 1)
    monkeypatch.setattr(arguments, "check_output", lambda *a, **k: None)
    _, err = t2t("--output=memory://bucket/out", stdin=b"a\nb\nc\nd\ne\n", code=128 + signal.SIGTERM)
    assert "holds the output of 4 lines." in err and "--resume" not in err
