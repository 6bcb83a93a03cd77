"""The folder of a sweep: extending it, accepted sweeps and names, and interruptions."""

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

from t2t_flax.errors import UserError
from t2t_flax.extensions.shared.processes import child_environment
from t2t_flax.extensions.sweeps.attempts import training_command
from t2t_flax.extensions.sweeps.folder import Folder, read_proposals, read_sweep
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.extensions.sweeps.trials import folder_name, is_folder_name


def test_extend_adds_rows_and_seeds(fake_sweep):
    sweep = fake_sweep({"one": "ok"})
    sweep.work()
    grown = FakeSweep(sweep.folder.path, {"one": "ok", "two": "ok"}, seeds=2, extend=True)
    assert grown.names == ["one,seed=0", "one,seed=1", "two,seed=0", "two,seed=1"]
    assert [grown.folder.state(name) for name in grown.names] == ["complete", "waiting", "waiting", "waiting"]


def test_interrupted_creation_is_repeated(fake_sweep):
    """With the configs of the new sweep, not those of the interrupted one."""
    sweep = fake_sweep({"zero": "ok", "one": "ok"})
    (sweep.folder.path / "sweep.json").rename(sweep.folder.path / "sweep.json.partial-1")
    assert json.loads(sweep.folder.config("one,seed=0").read_text())["train"]["steps"] == 101
    assert FakeSweep(sweep.folder.path, {"one": "ok"}).names == ["one,seed=0"]
    assert json.loads(sweep.folder.config("one,seed=0").read_text())["train"]["steps"] == 100


def test_sweep_that_another_worker_finishes_creating_meanwhile_is_joined(fake_sweep, monkeypatch):
    sweep = fake_sweep({"one": "ok"})
    file = sweep.folder.path / "sweep.json"
    hidden, listing = file.rename(file.with_name("sweep.json.partial-1")), Path.iterdir

    def other_worker_writes(path):
        if hidden.exists():
            hidden.rename(file)
            sweep.update_status("one,seed=0", attempts=1)
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", other_worker_writes)
    assert FakeSweep(sweep.folder.path, {"one": "ok"}).names == ["one,seed=0"] and not hidden.exists()


def test_pruned_trial_stays_pruned_when_its_training_fails(fake_sweep):
    sweep = fake_sweep({"one": "fail"})
    sweep.update_status("one,seed=0", outcome="pruned")
    claims = {name: sweep.folder.claim(name) for name in sweep.names}
    assert sweep.worker().attempt(claims, Resources()) == {"one,seed=0": "pruned"}
    assert sweep.states() == ["pruned"]


def test_status_counts_attempts(fake_sweep):
    sweep = fake_sweep({"flaky": "once"})
    sweep.work()
    status = sweep.folder.status("flaky,seed=0")
    assert (status.attempts, status.failures, status.unresolved, status.outcome) == (2, 1, 0, "")


def test_damaged_status_is_an_error(fake_sweep):
    sweep = fake_sweep({"one": "ok"})
    sweep.update_status("one,seed=0", attempts=1)
    for text in ("{", "[]", '{"letters": 1}'):
        (sweep.folder.path / "status" / "one,seed=0.json").write_text(text)
        with pytest.raises(UserError, match="one,seed=0.json is damaged.*remove it to retry"):
            sweep.states()


def test_folder_of_another_sweep_is_rejected_with_the_differences(fake_sweep):
    sweep = fake_sweep({"one": "ok", "two": "ok"})
    before = (sweep.folder.path / "sweep.json").read_text()
    with pytest.raises(UserError, match="only in the folder: two,seed=0"):
        FakeSweep(sweep.folder.path, {"one": "ok"})
    with pytest.raises(
        UserError, match="only now: three,seed=0\nUse another --workdir, or add them to this one with --extend"
    ):
        FakeSweep(sweep.folder.path, {"one": "ok", "two": "ok", "three": "ok"})
    assert (sweep.folder.path / "sweep.json").read_text() == before


def test_other_code_is_rejected(fake_sweep):
    sweep = fake_sweep({"one": "ok"})
    file = sweep.folder.path / "sweep.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps(stored | {"code": {"version": "0.0.1", "digest": "f" * 16}}))
    with pytest.raises(UserError, match="created by t2t_flax 0.0.1 .*ffffffff.* --any-code"):
        FakeSweep(sweep.folder.path, {"one": "ok"})


def test_tokenized_data_is_cached_in_the_folder_after_a_move(tmp_path):
    """Unless the config names a cache."""
    sweep = FakeSweep(tmp_path / "a", {"row": "ok"})
    (tmp_path / "a").rename(tmp_path / "b")
    moved = Folder(tmp_path / "b")
    assert training_command(moved, sweep.names, Resources())[-1] == f"--config.data.cache={tmp_path / 'b' / 'data'}"
    stored = json.loads(moved.config(sweep.names[0]).read_text())
    stored["data"]["cache"] = "/fast/stores"
    moved.config(sweep.names[0]).write_text(json.dumps(stored))
    assert not any("data.cache" in word for word in training_command(moved, sweep.names, Resources()))


NAMES = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(["..", ".", "/", "\\", "a", "x=1", ",seed=0", "\n", "~", "é", "\0", ""]), max_size=6).map(
        "".join
    ),
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The folder of a sweep with one trial; tests rewrite its sweep.json."""
    return FakeSweep(tmp_path_factory.mktemp("names") / "sweep", {"row": "ok"}).folder


def renamed(folder, name, **changes):
    """The text of sweep.json with another name and other values for its trial."""
    file = folder.path / "sweep.json"
    content = json.loads(file.read_text())
    (trial,) = content["trials"].values()
    return json.dumps(content | {"trials": {name: trial | changes}})


@hypothesis.settings(max_examples=40)
@hypothesis.given(NAMES)
@hypothesis.example("../../etc/x")
@hypothesis.example("/etc/passwd")
@hypothesis.example("x" * 300)
def test_names_never_lead_out_of_the_folder(stored, name):
    before = (stored.path / "sweep.json").read_text()
    try:
        (stored.path / "sweep.json").write_text(renamed(stored, name))
        try:
            (read,) = read_sweep(stored.path)["trials"]
        except UserError as error:
            assert "names that a folder can have" in str(error)
            return
        for path in (stored.workdir(read), stored.config(read), stored.log(read)):
            parent, file = os.path.split(os.path.normpath(path))
            assert parent == str(path.parent) and file.startswith(read) and path.parent.parent == stored.path
    finally:
        (stored.path / "sweep.json").write_text(before)


@hypothesis.given(st.text(max_size=200), st.integers(0, 99_999), st.integers(0, 10**6))
def test_generated_names_are_accepted(text, number, seed):
    assert is_folder_name(f"{folder_name(text)},seed={seed}")
    assert is_folder_name(f"{number:03d},{folder_name(text)},seed={seed}")


@pytest.mark.parametrize("name, changes, message", [
    ("../x", {}, r"sweep\.json has the name '\.\./x': trials and rows need names that a folder can have"),
    ("x", {"row": "../x"}, "has the name '../x'"),
    ("x", {"row": 3}, "needs a row"),
    ("x", {"seed": "0"}, "trial x needs a row, a seed and overrides"),
])  # fmt: skip
def test_trials_are_validated_when_a_sweep_is_read(stored, tmp_path, name, changes, message):
    (tmp_path / "sweep.json").write_text(renamed(stored, name, **changes))
    with pytest.raises(UserError, match=message):
        read_sweep(tmp_path)


@pytest.mark.parametrize("proposal, message", [
    ({"name": "../x", "row": "x", "seed": 0, "overrides": {}}, "has the name '../x'"),
    ({"name": "x", "row": "x", "seed": 0}, "needs a row, a seed and overrides"),
    ({"row": "x", "seed": 0, "overrides": {}}, "has the name None"),
    ([], "is not a JSON object"),
])  # fmt: skip
def test_proposals_are_validated_when_they_are_read(stored, tmp_path, proposal, message):
    (tmp_path / "sweep.json").write_text((stored.path / "sweep.json").read_text())
    (tmp_path / "proposals").mkdir()
    (tmp_path / "proposals" / "00000.json").write_text(json.dumps(proposal))
    for read in (read_proposals, read_sweep):
        with pytest.raises(UserError, match=rf"00000\.json.*{message}"):
            read(tmp_path)


def test_reading_the_holder_does_not_block_a_claim(tmp_path, monkeypatch):
    """The progress table of another worker holds a shared lock briefly; a training holds it for good."""
    folder = Folder(tmp_path)
    first = folder.claim("a")
    assert folder.claim("a") is None, "a training keeps it"
    first.release()
    reader = (tmp_path / "claims" / "a").open()
    fcntl.flock(reader, fcntl.LOCK_SH)
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            reader.close()

    monkeypatch.setattr("t2t_flax.locks.time.sleep", sleep)
    claim = folder.claim("a")
    assert claim is not None and len(waited) == 3
    assert folder.claim("a") is None and len(waited) == 3, "nobody waits for a training"
    claim.release()
    with (tmp_path / "claims" / "a").open() as forever:
        fcntl.flock(forever, fcntl.LOCK_SH)
        assert folder.claim("a") is None and 0.02 < sum(waited) < 0.1


def test_trainings_import_no_code_from_the_sweeps_cwd(tmp_path, monkeypatch):
    """Where relative entries of PYTHONPATH would otherwise be resolved."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "json.py").write_text("raise SystemExit('code of the sweep folder ran')\n")
    (foreign / "t2t_flax").mkdir()
    (foreign / "t2t_flax" / "__init__.py").write_text("raise SystemExit('code of the sweep folder ran')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.chdir(tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", "import json, t2t_flax; print(json.__file__, t2t_flax.__file__)"],
        env=child_environment(), cwd=foreign, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "foreign" not in result.stdout
