"""Workers on a grid: which trial trains next, retries, kills, and several workers on one folder."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from helpers.processes import wait_for
from helpers.refusals import assert_names, refused
from stand_in import Grid, diverges, exits, fails, mistaken, ok, until_stopped

from t2t_flax.errors import USER_ERROR
from t2t_flax.extensions.sweeps.folder import Folder, read_sweep
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.extensions.sweeps.worker import count_states, has_result, training_command


@pytest.mark.smoke
def test_every_trial_trains_once_by_two_workers(grid):
    """They claim the trials at the same time."""
    sweep = grid({"one": ok(), "two": ok(), "three": ok()}, seeds=2)
    together = threading.Barrier(2)
    threads = [
        threading.Thread(target=lambda: (together.wait(), sweep.work(parallel=2))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert count_states(sweep.folder, sweep.names) == {"complete": 6} and sweep.starts() == [1] * 6


@pytest.mark.parametrize("behaviour, state, starts", [
    (fails, "failed", 3), (mistaken, "failed", 1), (diverges, "diverged", 1), (exits(1), "complete", 2), (exits(75), "complete", 2),
    (exits(75, 1, 75, 75, 75, 1), "complete", 7), (exits(0, 0, 0), "failed", 3),
], ids=["fails", "user error", "diverges", "once", "stopped by others", "often", "no result"])  # fmt: skip
def test_end_of_a_trial(grid, behaviour, state, starts):
    """The next trial trains in any case, and finished trials are not repeated."""
    sweep = grid({"first": behaviour, "second": ok()})
    for _ in range(2):
        sweep.work(retries=2)
        assert sweep.states() == [state, "complete"] and sweep.starts() == [starts, 1]
    assert has_result(count_states(sweep.folder, sweep.names)) == (state != "failed")


def test_the_same_refusal_is_shown_once(grid):
    """Other trials that it ends name the first one."""

    def refused_for(key):
        def steps(training):
            log = training.workdir.parents[1] / "logs" / f"{training.workdir.name}.log"
            log.parent.mkdir(exist_ok=True)
            log.write_text(f"{training.workdir.name} starts\nt2t_flax train: {key} is refused\n")
            yield USER_ERROR

        return steps

    sweep = grid(
        {"one": refused_for("a.b"), "two": refused_for("a.b"), "other": refused_for("c.d")}
    )
    sweep.work()
    ends = [message for message in sweep.messages if ": failed" in message]
    assert [message.count("is refused") for message in ends] == [1, 0, 1]
    assert_names(ends[1], "two,seed=0", "one,seed=0")


def test_failed_trials_are_reopened(grid):
    sweep = grid({"bad": fails, "wild": diverges, "good": ok()})
    sweep.work(retries=0)
    sweep.behaviours |= {"bad": ok(), "wild": ok()}
    for name in sweep.names:
        sweep.folder.reopen(name)
    sweep.work(retries=0)
    assert sweep.states() == ["complete"] * 3 and sweep.starts() == [2, 2, 1]


def test_a_trial_that_ends_its_worker_again_and_again_fails(grid):
    """Unless it saves a checkpoint in between."""

    def ends_worker(training):
        if (training.workdir / "starts").read_text() == "....":
            (training.workdir / "checkpoints" / "7").mkdir(parents=True)
        yield 1 / 0

    sweep = grid({"bad": ends_worker, "good": ok()})
    for _ in range(4 + 5):
        with pytest.raises(ZeroDivisionError):
            sweep.work(retries=0)
        sweep.stop.clear()
    sweep.work(retries=0)
    assert sweep.states() == ["failed", "complete"] and sweep.starts() == [9, 1]


def test_stopped_worker_saves_and_its_trial_goes_on_first(grid):
    sweep = grid({"one": ok(), "slow": until_stopped, "last": ok()})
    worker = threading.Thread(target=sweep.work)
    worker.start()
    wait_for((sweep.folder.workdir("slow,seed=0") / "starts").exists, "the first update")
    assert sweep.folder.displayed_state("slow,seed=0") == "running" and sweep.folder.holder(
        "slow,seed=0"
    )
    sweep.stop.set()
    worker.join(60)
    assert sweep.states() == ["complete", "stopped", "waiting"] and not sweep.folder.holder(
        "slow,seed=0"
    )
    sweep.stop.clear()
    sweep.messages.clear()
    sweep.work()
    assert sweep.states() == ["complete"] * 3 and sweep.messages[0].startswith("slow,seed=0")


def test_trial_of_a_killed_worker_goes_on(grid):
    """It leaves its lock file; the kernel has released the lock."""
    sweep = grid({"one": ok(), "two": ok()})
    script = Path(__file__).with_name("killed_worker.py")
    done = subprocess.run([sys.executable, script, sweep.folder.path], timeout=120)
    assert done.returncode == -signal.SIGKILL and sweep.states() == ["stopped", "waiting"]
    sweep.work()
    assert sweep.states() == ["complete"] * 2 and sweep.starts() == [2, 1]


def test_trial_that_another_worker_trains_is_waited_for(grid):
    sweep = grid({"one": ok()})
    claim = sweep.folder.claim("one,seed=0")
    worker = threading.Thread(target=sweep.work)
    worker.start()
    worker.join(0.2)
    assert worker.is_alive() and sweep.starts() == [0]
    claim.release()
    worker.join(60)
    assert sweep.states() == ["complete"]


def test_error_of_a_worker_ends_its_trainings(grid, monkeypatch):
    started = []
    sweep = grid({"one": until_stopped})
    worker = sweep.worker()
    worker.start = lambda *arguments: started.append(sweep.start(*arguments)) or started[-1]
    monkeypatch.setattr(worker.trials, "should_prune", lambda name: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        worker.run()
    assert started[0].terminated and not sweep.folder.holder("one,seed=0")


def test_rows_and_seeds_are_added(grid, tmp_path):
    grid({"one": ok()}).work()
    grown = Grid(tmp_path / "sweep", {"one": ok(), "two": ok()}, seeds=2, extend=True)
    assert grown.states() == ["complete", "waiting", "waiting", "waiting"]


def test_interrupted_creation_is_repeated(grid, tmp_path):
    """With the configs of the new sweep, not those of the interrupted one."""
    sweep = grid({"zero": ok(), "one": ok()})
    (sweep.folder.path / "sweep.json").rename(sweep.folder.path / "sweep.json.partial-1")
    assert Grid(tmp_path / "sweep", {"one": ok()}).names == ["one,seed=0"]
    assert sweep.folder.read_config("one,seed=0").train.steps == 100


def rewritten(folder: Folder, **values) -> None:
    file = folder.path / "sweep.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_another_sweep_and_other_code_are_refused(grid, tmp_path):
    sweep = grid({"one": ok(), "two": ok()})
    for rows, names in (
        (["one"], ["two,seed=0"]),
        (["one", "two", "three"], ["three,seed=0", "--extend"]),
    ):
        with refused(*names):
            Grid(tmp_path / "sweep", dict.fromkeys(rows, ok()))
    rewritten(sweep.folder, cwd="/no/such/folder")
    with refused("/no/such/folder"):
        Grid(tmp_path / "sweep", sweep.behaviours)
    rewritten(sweep.folder, code={"version": "0.0.1", "digest": "f" * 16})
    with refused("0.0.1", "--any-code"):
        Grid(tmp_path / "sweep", sweep.behaviours)


@pytest.mark.parametrize("name, trial", [
    ("../x", {}), ("/etc/passwd", {}), ("x" * 300, {}), ("a\0", {}), ("x", {"row": "../x"}), ("x", {"row": 3}), ("x", {"seed": "0"}),
])  # fmt: skip
def test_names_never_lead_out_of_the_folder(grid, name, trial):
    sweep = grid({"one": ok()})
    rewritten(sweep.folder, trials={name: {"row": "x", "seed": 0, "overrides": {}} | trial})
    with refused("sweep.json"):
        read_sweep(sweep.folder.path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"config": "toy"}'])
def test_damaged_files_are_named(grid, text):
    sweep = grid({"bad": diverges})
    sweep.work()
    (sweep.folder.path / "ended" / "bad,seed=0.json").write_text(text)
    with refused("bad,seed=0.json"):
        sweep.states()
    (sweep.folder.path / "sweep.json").write_text(text)
    with refused("sweep.json"):
        read_sweep(sweep.folder.path)


def test_tokenized_data_is_cached_in_the_folder_after_a_move(grid, tmp_path):
    """Unless the config names a cache."""
    sweep = grid({"row": ok()})
    sweep.folder.path.rename(tmp_path / "moved")
    moved, (name,) = Folder(tmp_path / "moved"), sweep.names
    assert (
        training_command(moved, name, Resources())[-1]
        == f"--config.data.cache={tmp_path / 'moved' / 'data'}"
    )
    stored = json.loads(moved.config(name).read_text())
    stored["data"]["cache"] = "/fast/stores"
    moved.config(name).write_text(json.dumps(stored))
    assert training_command(moved, name, Resources())[-1] == "--config.data.cache=/fast/stores"
