"""A sweep's folder: what it keeps, whose it is, and what happens to it when a disk or a kill cuts something short."""

import json
from pathlib import Path

import pytest
from fake_sweep import FakeSweep

from t2t_flax.errors import UserError
from t2t_flax.sweeps.attempt import command
from t2t_flax.sweeps.folder import Folder
from t2t_flax.sweeps.shares import Share


def test_a_sweep_grows_only_when_asked_to(fake_sweep):
    sweep = fake_sweep({"one": "ok"})
    sweep.work()
    grown = FakeSweep(sweep.folder.path, {"one": "ok", "two": "ok"}, seeds=2, extend=True)
    assert grown.names == ["one,seed=0", "one,seed=1", "two,seed=0", "two,seed=1"]
    assert [grown.folder.state(name) for name in grown.names] == ["complete", "waiting", "waiting", "waiting"]


def test_a_folder_whose_making_was_cut_short_is_made_whole(fake_sweep):
    """With the configs of the sweep that is made now, not of the one that was not finished."""
    sweep = fake_sweep({"zero": "ok", "one": "ok"})
    (sweep.folder.path / "sweep.json").rename(sweep.folder.path / "sweep.json.partial-1")
    assert json.loads(sweep.folder.config("one,seed=0").read_text())["train"]["steps"] == 101
    assert FakeSweep(sweep.folder.path, {"one": "ok"}).names == ["one,seed=0"]
    assert json.loads(sweep.folder.config("one,seed=0").read_text())["train"]["steps"] == 100


def test_a_line_that_was_cut_short_is_left_out(fake_sweep):
    sweep = fake_sweep({"one": "ok"})
    sweep.folder.note("one,seed=0", event="begin")
    with sweep.folder._attempts("one,seed=0").open("a") as file:
        file.write('{"event": "fai')
    sweep.work()
    assert [line["event"] for line in sweep.folder.attempts("one,seed=0")] == ["begin", "begin", "complete"]


def test_a_full_disk_is_told(fake_sweep, monkeypatch):
    import errno

    sweep = fake_sweep({"one": "ok"})

    def full(*words, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match="make room"):
        sweep.folder.note("one,seed=0", event="begin")


def test_a_decision_to_prune_outlives_how_the_training_ended(fake_sweep):
    sweep = fake_sweep({"one": "ok"})
    for event in ("begin", "pruning", "failed"):
        sweep.folder.note("one,seed=0", event=event)
    assert sweep.folder.state("one,seed=0") == "pruned"


def test_attempts_are_noted(fake_sweep):
    sweep = fake_sweep({"flaky": "once"})
    sweep.work()
    lines = sweep.folder.attempts("flaky,seed=0")
    assert [line["event"] for line in lines] == ["begin", "failed", "begin", "complete"]
    assert lines[1]["exit"] == 1 and lines[3]["exit"] == 0 and lines[3]["seconds"] >= 0


def test_the_folder_of_another_sweep_is_refused_and_says_what_differs(fake_sweep):
    sweep = fake_sweep({"one": "ok", "two": "ok"})
    before = (sweep.folder.path / "sweep.json").read_text()
    with pytest.raises(UserError, match="only in the folder: two,seed=0"):
        FakeSweep(sweep.folder.path, {"one": "ok"})
    with pytest.raises(
        UserError, match="only now: three,seed=0\nUse another --workdir, or add them to this one with --extend"
    ):
        FakeSweep(sweep.folder.path, {"one": "ok", "two": "ok", "three": "ok"})
    assert (sweep.folder.path / "sweep.json").read_text() == before


def test_other_code_is_refused(fake_sweep):
    sweep = fake_sweep({"one": "ok"})
    file = sweep.folder.path / "sweep.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps(stored | {"code": {"version": "0.0.1", "digest": "f" * 16}}))
    with pytest.raises(UserError, match="made by t2t_flax 0.0.1 .*ffffffff.* --any-code"):
        FakeSweep(sweep.folder.path, {"one": "ok"})


def test_a_file_system_without_locks_is_refused(fake_sweep, monkeypatch):
    """Two workers would train one trial there."""
    import errno
    import fcntl

    sweep = fake_sweep({"a": "ok"})

    def no_flock(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_flock)
    with pytest.raises(UserError, match="has no locks .No locks available.*NFS 4"):
        sweep.work()
    with pytest.raises(UserError, match="has no locks"):
        FakeSweep(sweep.folder.path, {"a": "ok"})
    assert not sweep.folder.attempts("a,seed=0")


def test_stores_lie_in_the_folder_wherever_it_is(tmp_path):
    """It was moved, or another host sees it under another path; a cache that the config names stays."""
    sweep = FakeSweep(tmp_path / "a", {"row": "ok"})
    (tmp_path / "a").rename(tmp_path / "b")
    moved = Folder(tmp_path / "b")
    assert command(moved, sweep.names, Share())[-1] == f"--config.data.cache={tmp_path / 'b' / 'data'}"
    stored = json.loads(moved.config(sweep.names[0]).read_text())
    stored["data"]["cache"] = "/fast/stores"
    moved.config(sweep.names[0]).write_text(json.dumps(stored))
    assert not any("data.cache" in word for word in command(moved, sweep.names, Share()))
