"""`translate_file` on several processes, here threads.

The model is a stand-in that answers in capitals.
"""

import argparse
import contextlib
import time

import jax.numpy as jnp
import pytest
from helpers import capitals_run
from helpers.refusals import assert_names, refused, refused_command
from helpers.thread_groups import run_processes

from t2t_flax.cli.lines import paired
from t2t_flax.config import Config, override, resolve, to_config_dict
from t2t_flax.errors import UserError
from t2t_flax.evaluation import restore
from t2t_flax.extensions.bulk_translation import shared_translation
from t2t_flax.extensions.bulk_translation.shared_translation import Share, join


def lines_of(n):
    return paired(map(str, range(n)), None, ("lines", None))


@pytest.mark.parametrize(("n", "count"), [(0, 2), (1, 3), (9, 1), (9, 2), (10, 2), (35, 3)])
def test_each_line_belongs_to_one_process_and_windows_stay_within_a_turn(n, count):
    numbers = []
    for index in range(count):
        share = Share(index, count, turn=5)
        for window in share.windows(share.of(lines_of(n)), 3):
            numbers += [line.number for line in window]
            assert [line.number for line in window] == list(
                range(window[0].number, window[0].number + len(window))
            )
            assert count == 1 or window[0].number // 5 == window[-1].number // 5
    assert sorted(numbers) == list(range(n))


class CapitalsRun(capitals_run.CapitalsRun):
    """Translations have the numbers of their lines.

    `fail_at`: the line at which translating fails.
    """

    fail_at = ""
    before_batch = staticmethod(lambda: None)

    def translate(self, lines, *, first_line=0, **more):
        if self.fail_at in lines:
            raise UserError(f"failed at {self.fail_at}")
        self.before_batch()
        numbered = [f"{line}#{i}" for i, line in enumerate(lines, first_line)]
        return super().translate(numbered, first_line=first_line, **more)


class Supervisor:
    def __init__(self, group):
        self.group, self.said, self.progress_expected = group, [], False
        self.say = self.said.append

    @contextlib.contextmanager
    def exit_on_signal(self, what, *, advice):
        yield

    @contextlib.contextmanager
    def expect_progress(self):
        self.progress_expected = True
        yield
        self.progress_expected = False

    def note_progress(self):
        pass


@pytest.fixture
def translate(monkeypatch, tmp_path):
    """Runs `count` processes on the files `in` and `starts` with turns of 5 lines.

    Returns what each one returned or raised.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w").mkdir()
    monkeypatch.setattr(
        shared_translation, "Share", lambda index, count: Share(index, count, turn=5)
    )
    monkeypatch.setattr(restore, "stored_config", lambda workdir, overrides: Config())

    def run(
        count,
        *,
        n_best=1,
        prefix=None,
        resume=False,
        fail_at="",
        weights=(0.0,) * 3,
        before_batch=None,
    ):
        """before_batch: called with the process's supervisor."""
        supervisors = {}

        def load(workdir, *, local, group, **choice):
            assert local
            keys = {"decode.batch_size": "1", "decode.n_best": str(n_best)}
            run = CapitalsRun(resolve(override(to_config_dict(Config()), keys)))
            if before_batch:
                run.before_batch = lambda: before_batch(supervisors[group.index])
            run.fail_at, run.params = fail_at, {"w": jnp.float32(weights[group.index])}
            return run

        monkeypatch.setattr(restore, "load", load)
        args = argparse.Namespace(
            workdir="w",
            input="in",
            output="out",
            prefix=prefix,
            n_best=None,
            resume=resume,
            scores=False,
            step=None,
            average=0,
            best=False,
            target_language=None,
        )

        def job(group):
            supervisors[group.index] = Supervisor(group)
            try:
                return shared_translation._job(args, {}, supervisors[group.index])
            except Exception:
                group._client.available = False  # as where a process ends: nobody waits for it
                raise

        return run_processes(count, job)

    return run


@pytest.mark.parametrize(
    ("n", "n_best", "prefix"),
    [(0, 1, None), (3, 3, "starts"), (5, 1, None), (23, 3, "starts"), (25, 1, None)],
)
def test_joined_output_does_not_depend_on_the_number_of_processes(
    translate, tmp_path, n, n_best, prefix
):
    (tmp_path / "in").write_text("".join(f"line {i}\n" for i in range(n)))
    (tmp_path / "starts").write_text("".join(f"{i}: \n" for i in range(n)))
    outputs = []
    for count in (1, 2, 3):
        assert translate(count, n_best=n_best, prefix=prefix) == [0] * count
        outputs.append((tmp_path / "out").read_text())
        assert not list(tmp_path.glob("out.*"))
        (tmp_path / "out").unlink()
    assert outputs[0].count("\n") == n * n_best and len(set(outputs)) == 1


def test_output_is_joined_only_when_all_shares_are_complete_and_resumes(translate, tmp_path):
    (tmp_path / "in").write_text("".join(f"line {i}\n" for i in range(23)))
    failed = translate(2, fail_at="line 16")  # the second turn of process 1
    assert any("line 16" in str(each) and "--resume" in str(each) for each in failed)
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.partial-1-of-2").read_text() == "".join(
        f"LINE {i}#{i}\n" for i in range(5, 10)
    )
    assert all("--resume" in str(each) for each in translate(2) if isinstance(each, UserError))
    answers = translate(3, resume=True)
    assert all(isinstance(each, Exception) for each in answers)
    assert any("2 processes" in str(each) for each in answers)
    assert_names(str(translate(1, resume=True)[0]), "2 processes")
    assert translate(2, resume=True) == [0, 0]
    assert (tmp_path / "out").read_text() == "".join(f"LINE {i}#{i}\n" for i in range(23))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "w"]


def test_unequal_numbers_of_prefixes_are_reported_with_the_counts_of_the_files(translate, tmp_path):
    (tmp_path / "in").write_text("a\n" * 12)
    (tmp_path / "starts").write_text("b\n" * 11)
    answers = list(map(str, translate(2, prefix="starts")))
    # A process may learn first that the other one has ended.
    assert (
        any("12 lines" in answer and "starts 11" in answer for answer in answers)
        and "0" not in answers
    ), answers
    assert not (tmp_path / "out").exists()


def test_processes_with_different_parameters_do_not_share_a_translation(translate, tmp_path):
    """As of workdirs that are not the same for all."""
    (tmp_path / "in").write_text("a\n")
    answers = list(map(str, translate(2, weights=(1.0, 2.0))))
    assert any("parameters" in answer and "--workdir=w" in answer for answer in answers), answers
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "w"]


@pytest.mark.parametrize(
    "flags", [["--input=in", "--output=/dev/null"], ["--input=-", "--output=out"]]
)
def test_what_processes_cannot_share_is_refused(monkeypatch, tmp_path, flags):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text("a\n")
    variables = dict(
        T2T_NUM_PROCESSES="2", T2T_PROCESS_ID="1", JAX_COORDINATOR_ADDRESS="localhost:1"
    )
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refused_command(["translate_file", "--workdir=w", *flags], "--input=FILE", "--output=FILE")


@pytest.mark.parametrize("second", ["", "c\n", "c\nd\ne\nf\n"])
def test_parts_of_another_length_than_their_share_are_not_joined(tmp_path, second):
    """As of a folder that is not the same for all.

    2 and 2 lines in turns of 2 are the 4 lines of the input.
    """
    parts = [tmp_path / "out.partial-0-of-2", tmp_path / "out.partial-1-of-2"]
    parts[0].write_text("a\nb\n")
    parts[1].write_text(second)
    with refused("--output"):
        join(parts, tmp_path / "out", 2, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == [part.name for part in parts]
    parts[1].write_text("c\nd\n")
    join(parts, tmp_path / "out", 2, 4)
    assert (tmp_path / "out").read_text() == "a\nb\nc\nd\n"


def test_progress_is_expected_of_the_translation_but_not_of_the_wait_for_others(
    translate, tmp_path
):
    (tmp_path / "in").write_text("".join(f"line {i}\n" for i in range(10)))
    watched = []

    def before_batch(supervisor):
        if supervisor.group.index == 1:
            time.sleep(0.05)
        watched.append(supervisor.progress_expected)
        if supervisor.group.index == 0:
            waiting.append(supervisor)

    waiting = []
    assert translate(2, before_batch=before_batch) == [0, 0]
    assert watched and all(watched) and not waiting[0].progress_expected
