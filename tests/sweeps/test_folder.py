"""A sweep's folder: what it keeps, whose it is, and what happens to it when a disk or a kill cuts something short."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
from fake_sweep import FakeSweep
from hypothesis import strategies as st

from t2t_flax.config import load_config
from t2t_flax.errors import UserError
from t2t_flax.process_setup import child_environment
from t2t_flax.sweeps.attempt import command, relative_paths
from t2t_flax.sweeps.folder import Folder, asked, read_sweep
from t2t_flax.sweeps.shares import Share
from t2t_flax.sweeps.trials import folder_name, is_folder_name


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


NAMES = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(["..", ".", "/", "\\", "a", "x=1", ",seed=0", "\n", "~", "é", "\0", ""]), max_size=6).map(
        "".join
    ),
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The folder of a sweep with one trial, which tests rewrite."""
    return FakeSweep(tmp_path_factory.mktemp("names") / "sweep", {"row": "ok"}).folder


def renamed(folder, name, **changes):
    """The sweep with its trial's name, or what it says of the trial, replaced."""
    file = folder.path / "sweep.json"
    content = json.loads(file.read_text())
    (trial,) = content["trials"].values()
    return json.dumps(content | {"trials": {name: trial | changes}})


@hypothesis.given(NAMES)
@hypothesis.example("../../etc/x")
@hypothesis.example("/etc/passwd")
@hypothesis.example("x" * 300)
def test_a_name_is_refused_or_stays_in_the_folder(stored, name):
    """Joining somebody else's sweep writes nowhere else."""
    before = (stored.path / "sweep.json").read_text()
    try:
        (stored.path / "sweep.json").write_text(renamed(stored, name))
        try:
            (read,) = read_sweep(stored.path)["trials"]
        except UserError as error:
            assert "is named as its folder" in str(error)
            return
        for path in (stored.workdir(read), stored.config(read), stored.log(read), stored._attempts(read)):
            parent, file = os.path.split(os.path.normpath(path))
            assert parent == str(path.parent) and file.startswith(read) and path.parent.parent == stored.path
    finally:
        (stored.path / "sweep.json").write_text(before)


@hypothesis.given(st.text(max_size=200), st.integers(0, 99_999), st.integers(0, 10**6))
def test_names_of_sweeps_are_accepted(text, number, seed):
    assert is_folder_name(f"{folder_name(text)},seed={seed}")
    assert is_folder_name(f"{number:03d},{folder_name(text)},seed={seed}")


@pytest.mark.parametrize("name, changes, told", [
    ("../x", {}, r"sweep\.json names '\.\./x': a trial or row is named as its folder"),
    ("x", {"row": "../x"}, "names '../x'"),
    ("x", {"row": 3}, "names 3"),
    ("x", {"seed": "0"}, "trial x needs a row, a seed and overrides"),
])  # fmt: skip
def test_names_and_rows_are_checked_when_a_sweep_is_read(stored, tmp_path, name, changes, told):
    (tmp_path / "sweep.json").write_text(renamed(stored, name, **changes))
    with pytest.raises(UserError, match=told):
        read_sweep(tmp_path)


@pytest.mark.parametrize("proposal, told", [
    ({"name": "../x", "row": "x", "seed": 0, "overrides": {}, "number": 0}, "names '../x'"),
    ({"name": "x", "row": "x", "seed": 0, "overrides": {}}, "has a number"),
    ({"row": "x", "seed": 0, "overrides": {}, "number": 0}, "names None"),
    ([], "has a number"),
])  # fmt: skip
def test_proposals_of_a_search_are_checked_when_they_are_read(stored, tmp_path, proposal, told):
    (tmp_path / "sweep.json").write_text((stored.path / "sweep.json").read_text())
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked" / "00000.json").write_text(json.dumps(proposal))
    for read in (asked, read_sweep):
        with pytest.raises(UserError, match=rf"00000\.json.*{told}"):
            read(tmp_path)


def test_a_look_at_who_holds_a_claim_does_not_make_it_fail(tmp_path, monkeypatch):
    """The live table of another worker shares the lock for a moment; a training keeps it."""
    folder = Folder(tmp_path)
    first = folder.claim("a")
    assert folder.claim("a") is None, "a training keeps it"
    first.release()
    looker = (tmp_path / "claims" / "a").open()
    fcntl.flock(looker, fcntl.LOCK_SH)
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            looker.close()

    monkeypatch.setattr("t2t_flax.sweeps.folder.time.sleep", sleep)
    claim = folder.claim("a")
    assert claim is not None and len(waited) == 3
    assert folder.claim("a") is None and len(waited) == 3, "nobody waits for a training"
    claim.release()
    with (tmp_path / "claims" / "a").open() as forever:
        fcntl.flock(forever, fcntl.LOCK_SH)
        assert folder.claim("a") is None and 0.02 < sum(waited) < 0.1


def moved(sweep, **data):
    """The sweep's only config with other data keys, absolute but for these."""
    (name,) = sweep.names
    content = json.loads(sweep.folder.config(name).read_text())
    content["data"] |= data
    sweep.folder.config(name).write_text(json.dumps(content))


@pytest.mark.parametrize("data, told", [
    ({"root": "texts"}, "data.root = 'texts'"),
    ({"train": "train.en,/abs/train.de"}, "data.train = 'train.en,/abs/train.de'"),
    ({"test": "news=/abs/a,b"}, "data.test = 'news=/abs/a,b'"),
    ({"tokenizer_model": "codes.bpe"}, "data.tokenizer_model"),
    ({"cache": "stores"}, "data.cache"),
])  # fmt: skip
def test_relative_paths_need_the_folder_in_which_the_sweep_was_made(fake_sweep, tmp_path, data, told):
    sweep = fake_sweep({"row": "ok"})
    moved(sweep, **data)
    with pytest.raises(UserError, match=rf"gone, which this host does not have.*row,seed=0\.json has paths.*{told}"):
        sweep.work(cwd=str(tmp_path / "gone"))
    assert not sweep.folder.attempts("row,seed=0"), "nothing was begun"
    sweep.work(cwd=str(tmp_path))
    assert sweep.folder.state("row,seed=0") == "complete"


def test_absolute_paths_need_no_other_folder(fake_sweep, tmp_path):
    sweep = fake_sweep({"row": "ok"})
    moved(
        sweep, root="/data", train="a,b", test="news=a,b; web=c,d", tokenizer_model="codes", cache="gs://bucket/stores"
    )
    sweep.work(cwd=str(tmp_path / "gone"))
    assert sweep.folder.state("row,seed=0") == "complete"


def test_code_of_a_trial_is_not_loaded_from_the_folder_that_the_sweep_names(fake_sweep, tmp_path, monkeypatch):
    """A relative entry of PYTHONPATH would be looked up in sweep.json's `cwd`."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "json.py").write_text("raise SystemExit('code of the sweep folder ran')\n")
    (foreign / "t2t_flax").mkdir()
    (foreign / "t2t_flax" / "__init__.py").write_text("raise SystemExit('code of the sweep folder ran')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "import json, t2t_flax; print(json.__file__, t2t_flax.__file__)"],
        env=child_environment(), cwd=foreign, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "foreign" not in done.stdout


def test_named_sets_of_the_built_in_corpus_are_no_relative_paths():
    sets = {"data.train": "toy:train", "data.test": "a=toy:test:20; b=tfds:wmt14_translate/de-en:test"}
    config = load_config("configs/toy.py", sets)
    assert "data.test" not in relative_paths(config)
    config = load_config("configs/toy.py", sets | {"data.test": "a=toy:test; b=x.en,/data/x.de"})
    assert relative_paths(config)["data.test"] == "a=toy:test; b=x.en,/data/x.de"
