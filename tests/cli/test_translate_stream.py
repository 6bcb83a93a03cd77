"""`translate` reads windows and writes them in order.

The model is a stand-in that answers in capitals.
"""

import os
import re
import signal
import threading
import time

import pytest
from helpers import capitals_run
from helpers.capitals_run import stop_at_window
from helpers.refusals import assert_names, refused

from t2t_flax.cli import arguments
from t2t_flax.cli import lines as lines_module
from t2t_flax.cli.lines import Signalled, paired, stop_signals, windows
from t2t_flax.errors import UserError


def numbered(lines):
    """The lines as `translate` reads them without --prefix."""
    return paired(lines, None, ("lines", None))


def texts(seen):
    return [[line.text for line in window] for window in seen]


@pytest.fixture(autouse=True)
def cpu_without_bfloat16(monkeypatch):
    """What is written to standard error then does not depend on the CPU."""
    monkeypatch.setattr("t2t_flax.training.precision.advice", lambda config, decoding: "")


@pytest.fixture
def run(monkeypatch, tmp_path):
    return capitals_run.use(monkeypatch, tmp_path)


@pytest.fixture
def t2t(monkeypatch, capsys):
    return capitals_run.command("translate", monkeypatch, capsys)


def test_windows_are_written_in_input_order(run, t2t):
    lines = [f"line {i}" for i in range(10)] + [""]
    out, _ = t2t(stdin="\n".join([*lines, ""]).encode())
    assert out == "".join(line.upper() + "\n" for line in lines)
    assert [(first, len(window)) for first, window in run.windows] == [(0, 4), (4, 4), (8, 3)]


def test_lines_are_read_no_further_than_the_window(monkeypatch):
    monkeypatch.setattr(lines_module, "PAUSE", 60.0)  # the reader may be slow
    read = []

    def lines():
        for i in range(10_000_000):
            read.append(i)
            yield str(i)

    for live in (True, False):
        read.clear()
        assert texts([next(windows(numbered(lines()), 100, live=live))]) == [
            [str(i) for i in range(100)]
        ]
        time.sleep(0.2)
        assert len(read) <= 100 + 201


def test_arrived_lines_do_not_wait_for_a_full_window():
    answered, seen = threading.Semaphore(0), []

    def lines():
        for line in ("one", "two", "three"):
            yield line
            assert answered.acquire(timeout=120)  # the next line is typed after the answer

    for window in windows(numbered(lines()), 100, live=True):
        seen.append(window)
        answered.release()
    assert texts(seen) == [["one"], ["two"], ["three"]]


@pytest.mark.parametrize("live", [True, False])
def test_error_of_the_input_follows_the_lines_before_it(live, monkeypatch):
    monkeypatch.setattr(lines_module, "PAUSE", 60.0)  # the reader may be slow

    def lines():
        yield from ("one", "two", "three")
        raise UserError("exhausted")

    seen = []
    with refused("exhausted"):
        seen.extend(windows(numbered(lines()), 2, live=live))
    assert texts(seen) == [["one", "two"], ["three"]]


def test_signal_while_lines_are_awaited_is_raised():
    def lines():
        yield "one"
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    with stop_signals() as check, refused("SIGTERM", error=Signalled):
        next(windows(numbered(lines()), 2, check=check))


def test_second_signal_is_raised_at_once():
    with stop_signals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGHUP)  # the end of a session sends it beside another
        with refused("SIGTERM", error=Signalled):
            signal.raise_signal(signal.SIGTERM)


def test_unexpected_error_of_the_reader_is_raised():
    def lines():
        yield "one"
        raise ZeroDivisionError

    arriving = windows(numbered(lines()), 2)
    assert texts([next(arriving)]) == [["one"]]
    with pytest.raises(ZeroDivisionError):
        next(arriving)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP])
def test_signal_without_an_output_file_keeps_what_was_written(run, t2t, stop):
    stop_at_window(run, 1, stop)
    out, err = t2t(stdin=b"a\nb\nc\nd\ne\n", code=128 + stop)
    assert out == "A\nB\nC\nD\n"
    assert_names(err, stop.name)


@pytest.mark.parametrize(("lines", "starts"), [(9, 5), (5, 9), (4, 5), (4, 0)])
def test_unequal_numbers_of_prefixes_are_an_error(run, t2t, tmp_path, lines, starts):
    (tmp_path / "starts").write_text("x\n" * starts)
    _, err = t2t("--prefix=starts", stdin=b"y\n" * lines, code=2)
    assert_names(err, f"{lines} lines", f"starts {starts}")


def test_long_runs_report_progress(run, t2t, monkeypatch):
    monkeypatch.setattr(lines_module, "PROGRESS_SECONDS", 0.0)
    _, err = t2t(stdin=b"a\nb\nc\nd\ne\n")
    assert [re.findall(r"\d+", line)[0] for line in err.splitlines()] == ["4", "5"]


def test_pipe_as_output_receives_each_window(run, t2t, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    t2t("--output=pipe", stdin=b"a\nb\n")
    reader.join(120)
    assert received == ["A\nB\n"]


def test_signal_while_the_run_is_loaded_stops_after_it(run, t2t, monkeypatch):
    load = arguments.load_run
    monkeypatch.setattr(
        arguments, "load_run", lambda *a: os.kill(os.getpid(), signal.SIGINT) or load(*a)
    )
    out, err = t2t(stdin=b"a\n", code=128 + signal.SIGINT)
    assert out == "" and not run.windows
    assert_names(err, "SIGINT")


@pytest.mark.parametrize("output", ["/proc/out", "/proc/no/such/folder/out", "in/out", "."])
def test_impossible_output_is_refused_before_the_run_is_loaded(
    run, t2t, tmp_path, monkeypatch, output
):
    (tmp_path / "in").write_text("a\n")
    monkeypatch.setattr(arguments, "load_run", lambda *a: pytest.fail("was loaded"))
    _, err = t2t("--input=in", f"--output={output}", code=2)
    assert_names(err, f"--output={output}")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_output_in_a_folder_that_does_not_exist_creates_it(run, t2t, tmp_path):
    t2t("--output=new/folder/out", stdin=b"a\n")
    assert (tmp_path / "new/folder/out").read_text() == "A\n"
    assert [path.name for path in (tmp_path / "new/folder").iterdir()] == ["out"]


def test_output_file_appears_whole_or_not_at_all(run, t2t, tmp_path):
    (tmp_path / "out").write_text("before\n")
    (tmp_path / "in").write_text("a\nb\nc\nd\ne\n")
    stop_at_window(run, 1)
    t2t("--input=in", "--output=out", code=128 + signal.SIGTERM)
    assert (tmp_path / "out").read_text() == "before\n"
    run.before_window = lambda number: None
    t2t("--input=in", "--output=out")
    assert (tmp_path / "out").read_text() == "A\nB\nC\nD\nE\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


BAD_LINES = b"a\nb\nno\nd\n\nbad \xff\nnever\nh\n"


@pytest.mark.parametrize(
    "command, flags", [("translate", []), ("translate_file", ["--input=in", "--output=out"])]
)
def test_a_line_that_cannot_be_translated_costs_that_line_alone(
    run, tmp_path, monkeypatch, capsys, command, flags
):
    run.refused = ("no", "never")
    (tmp_path / "in").write_bytes(BAD_LINES)
    out, err = capitals_run.command(command, monkeypatch, capsys)(*flags, stdin=BAD_LINES, code=2)
    text = (tmp_path / "out").read_text() if flags else out
    assert text == "A\nB\n\nD\n\n\n\nH\n"
    assert_names(err, "3 of", "line 3", "6 (byte", "byte 5", "0xff", "7 (never", "never is")


@pytest.mark.parametrize("flag", ["--n-best=2", "--prefix=in"])
def test_lines_that_cannot_be_translated_keep_the_form_of_the_output(run, t2t, tmp_path, flag):
    (tmp_path / "in").write_bytes(b"x\ny\xff\nz\n")
    out, err = t2t(
        flag, "--scores", stdin=b"a\nb\nc\n" if flag == "--prefix=in" else b"a\n\xff\nc\n", code=2
    )
    lines = out.splitlines()
    assert len(lines) == (6 if flag == "--n-best=2" else 3)
    assert_names(err, "line 2", "0xff")


def test_an_error_of_what_is_printed_costs_one_line(run, t2t, monkeypatch):
    class Printing(arguments.Change):
        def answers(self, lines, sources, n_best):
            if "c" in lines:
                raise IndexError("broken")
            return [[f"<{text}>" for text in texts] for texts in n_best]

    monkeypatch.setattr(arguments, "Changes", lambda model, flags: Printing(model, ""))
    monkeypatch.setattr(
        "t2t_flax.decoding.batches.read_lines", lambda config, tokenizers, lines, first: (lines, {})
    )
    out, err = t2t(stdin=b"a\nb\nc\nd\ne\n", code=2)
    assert out == "<A>\n<B>\n\n<D>\n<E>\n"
    assert_names(err, "line 3", "broken")


def test_what_is_wrong_with_all_lines_ends_the_command(run, t2t, tmp_path):
    run.refused = ("a", "b", "c")
    _, err = t2t("--output=out", stdin=b"a\nb\n\nc\n", code=2)
    assert_names(err, "line 1", "a is")
    assert not list(tmp_path.iterdir())


def test_an_error_that_is_none_of_a_line_ends_the_command(run, t2t, monkeypatch):
    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr(run, "translate", full)
    with pytest.raises(MemoryError):
        t2t(stdin=b"a\nb\n")
