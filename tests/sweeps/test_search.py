"""Searches that learn: Optuna's proposals, its journal, pruning."""

import json
import threading

import pytest
from fake_sweep import TOY, FakeSweep

from t2t_flax import config as config_lib
from t2t_flax.errors import UserError
from t2t_flax.sweeps.folder import asked, read_sweep
from t2t_flax.sweeps.opening import open_folder
from t2t_flax.sweeps.report import report
from t2t_flax.sweeps.space import Search, choice, log_uniform

optuna = pytest.importorskip("optuna", reason="optuna is not installed (extra sweep)")


class FakeSearch(FakeSweep):
    """Trainings whose final loss is that of their rate: the best one is 0.001."""

    def __init__(self, path, search):
        self.said, self.search = [], search
        described = {
            "version": 1, "config": TOY, "fixed": {}, "search": search.as_json(), "seeds": 1, "score": search.metric,
            "baseline": "",
        }  # fmt: skip
        # The updates at which fake_train.py evaluates.
        base = config_lib.load_config(TOY, {"train.steps": "1000", "eval.every_steps": "250"})
        self.folder, _ = open_folder(path, described, [], base=base)

    @property
    def names(self):
        return list(asked(self.folder.path))

    def command(self, folder, names, share):
        (name,) = names
        config = config_lib.from_json(folder.config(name).read_text())
        bad = config.optimizer.peak_lr > 0.01
        self.behaviours = {name.rsplit(",seed=", 1)[0]: "bad" if bad and self.search.prune else "ok"}
        return super().command(folder, names, share)

    def queue(self):
        from t2t_flax.sweeps.search import Searched

        return Searched(self.folder, self.search)


@pytest.fixture
def fake_search(tmp_path, monkeypatch):
    def make(search):
        from t2t_flax.sweeps import attempt

        sweep = FakeSearch(tmp_path / "sweep", search)
        monkeypatch.setattr(attempt, "command", sweep.command)
        return sweep

    return make


SPACE = {"optimizer.peak_lr": log_uniform(1e-5, 1e-1), "model.num_heads": choice(1, 2, 4)}


def proposals(sweep) -> list[dict]:
    return [told["overrides"] for told in asked(sweep.folder.path).values()]


def test_a_search_trains_its_count_and_goes_on_after_a_stop(fake_search, tmp_path):
    search = Search(SPACE, 6, "valid_nll", method="tpe", seed=3)
    whole = fake_search(search)
    whole.work(queue=whole.queue())
    assert len(whole.names) == 6 and all(whole.folder.state(name) == "complete" for name in whole.names)
    values = [trial.value for trial in whole.queue()._study.get_trials()]
    assert values == [1.5] * 6
    assert "1.5000" in report(whole.folder.path)
    assert list(read_sweep(whole.folder.path)["trials"]) == whole.names


def test_what_is_proposed_does_not_depend_on_stops(fake_search, tmp_path, monkeypatch):
    from t2t_flax.sweeps import attempt

    search = Search(SPACE, 5, "valid_nll", method="tpe", seed=3)
    whole = fake_search(search)
    whole.work(queue=whole.queue())
    stopped = FakeSearch(tmp_path / "other", search)
    monkeypatch.setattr(attempt, "command", stopped.command)
    while len(stopped.names) < 5 or any(stopped.folder.state(n) != "complete" for n in stopped.names):
        stop = threading.Event()
        queue = stopped.queue()
        ended = queue.ended
        queue.ended = lambda name, outcome: (ended(name, outcome), stop.set())  # noqa: B023
        stopped.work(queue=queue, stop=stop)
    assert proposals(stopped) == proposals(whole)


def test_a_line_of_the_journal_that_was_cut_short_is_taken_away(fake_search):
    """By a full disk, or a crash of the host: what is whole before it counts, and the search goes on."""
    sweep = fake_search(Search(SPACE, 3, "valid_nll", method="tpe", seed=3))
    queue = sweep.queue()
    assert queue.more()
    journal = sweep.folder.path / "optuna.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 5, "worker_i')
    sweep.work(queue=queue)
    assert journal.read_bytes().startswith(whole) and b"worker_i{" not in journal.read_bytes()
    assert [t.value for t in sweep.queue()._study.get_trials()] == [1.5] * 3


def test_a_worker_that_died_before_it_could_tell_is_made_good(fake_search):
    sweep = fake_search(Search(SPACE, 2, "valid_nll", method="tpe"))
    queue = sweep.queue()
    queue.ended = lambda name, outcome: None
    queue._settle = lambda: None
    sweep.work(queue=queue)
    queue = sweep.queue()
    queue.ended("", "")
    assert [t.value for t in queue._study.get_trials()] == [1.5, 1.5]


def test_a_trial_that_is_tried_again_counts_in_the_search(fake_search):
    sweep = fake_search(Search(SPACE, 2, "valid_nll", method="tpe"))
    queue = sweep.queue()
    assert queue.more()
    (name,) = sweep.names
    sweep.folder.note(name, event="given up")
    queue.ended(name, "failed")
    sweep.folder.try_again(name, given_up=True)
    sweep.work(queue=queue)
    sweep.queue().ended("", "")
    found = [(t.state.name, t.value, t.params) for t in sweep.queue()._study.get_trials()]
    assert sorted(state for state, _, _ in found) == ["COMPLETE", "COMPLETE", "FAIL"]
    assert sum(params == found[0][2] for _, _, params in found) == 2


def test_bad_trials_are_pruned(fake_search):
    sweep = fake_search(Search({"optimizer.peak_lr": log_uniform(1e-3, 1e-1)}, 12, "valid_nll", prune=True))
    sweep.work(queue=sweep.queue())
    told = asked(sweep.folder.path).items()
    found = {float(t["overrides"]["optimizer.peak_lr"]): sweep.folder.state(name) for name, t in told}
    assert set(found.values()) == {"complete", "pruned"}
    assert all(rate > 0.01 for rate, state in found.items() if state == "pruned")
    states = [t.state.name for t in sweep.queue()._study.get_trials()]
    assert states.count("PRUNED") == list(found.values()).count("pruned") and "RUNNING" not in states


def test_another_search_in_the_folder_is_refused(fake_search):
    sweep = fake_search(Search(SPACE, 2, "valid_nll", method="tpe"))
    with pytest.raises(UserError, match="search"):
        FakeSearch(sweep.folder.path, Search(SPACE, 3, "valid_nll", method="tpe"))
    assert json.loads((sweep.folder.path / "sweep.json").read_text())["search"]["count"] == 2


def test_a_missing_optuna_is_told(fake_search, monkeypatch):
    import sys

    sweep = fake_search(Search(SPACE, 2, "valid_nll", method="tpe"))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"needs Optuna: pip install -e '\.\[sweep\]'"):
        sweep.queue()


def test_combinations_that_are_impossible_are_asked_for_anew(fake_search):
    """Three heads do not divide d_model = 128."""
    sweep = fake_search(Search({"model.num_heads": choice(3, 4)}, 4, "valid_nll", method="tpe"))
    sweep.work(queue=sweep.queue())
    assert len(sweep.names) == 4 and all("num_heads=4" in name for name in sweep.names)
    assert all(sweep.folder.state(name) == "complete" for name in sweep.names)
    hopeless = Search({"model.num_heads": choice(3, 5)}, 1, "valid_nll", method="tpe")
    sweep.search = hopeless
    with pytest.raises(UserError, match="100 proposals of the search were no possible config"):
        from t2t_flax.sweeps.search import Searched

        (sweep.folder.path / "optuna.journal").unlink()
        for file in (sweep.folder.path / "asked").iterdir():
            file.unlink()
        Searched(sweep.folder, hopeless).more()


def test_a_trial_at_its_last_update_is_not_pruned(fake_search):
    """At the last update there is nothing left to save: the third rung of halving would lie there."""
    sweep = fake_search(Search({"optimizer.peak_lr": log_uniform(1e-3, 1e-1)}, 3, "valid_nll", prune=True))
    queue = sweep.queue()
    asked_of = []
    real = queue._running

    def running(name):
        trial = real(name)
        if trial is None:
            return None
        trial.should_prune = lambda: asked_of.append(1) or False
        trial.report = lambda value, step: asked_of.append(step)
        return trial

    queue._running = running
    sweep.work(queue=queue)
    steps = {step for step in asked_of if step > 1}
    assert steps and max(steps) < 1000
