"""Proposals, pruning, values and interruptions of a search, in a journal and a database."""

import functools
import math
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from helpers.processes import wait_for
from helpers.refusals import refused
from stand_in import SWEEP, TOY, Training, diverges, fails, ok, until_stopped

from t2t_flax.config import load_config
from t2t_flax.extensions.shared.addresses import without_credentials
from t2t_flax.extensions.sweeps.folder import open_or_create, read_sweep
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.extensions.sweeps.search import SearchTrials
from t2t_flax.extensions.sweeps.space import Search, choice, integers, log_uniform
from t2t_flax.extensions.sweeps.worker import Worker

optuna = pytest.importorskip("optuna")
SPACE = {"optimizer.peak_lr": log_uniform(1e-4, 1e-1), "model.num_heads": choice(2, 4)}
FIXED = {"optimizer.schedule": "constant", "train.steps": "100"}


class SearchSweep:
    """A search whose trials train as `behave(config)` says; by default the best rate is 0.01."""

    def __init__(
        self, path: Path, *, storage: str = "", space=None, extend=False, behave=None, **options
    ):
        search = Search(
            space or SPACE, **{"count": 6, "metric": "valid_nll", "method": "tpe"} | options
        )
        values = SWEEP | {"search": search.to_json(), "score": "valid_nll"}
        base, stored = load_config(TOY, FIXED), without_credentials(storage)
        self.folder, sweep = open_or_create(
            path, values, [], base=base, storage=stored, extend=extend
        )
        self.behave = behave or (
            lambda config: ok(nll=(9.0, abs(math.log10(config.optimizer.peak_lr) + 2)))
        )
        self.trials, self.stop, self.messages = (
            SearchTrials(self.folder, sweep, storage),
            threading.Event(),
            [],
        )

    def start(self, folder, name, *_) -> Training:
        return Training(folder.workdir(name), self.behave(folder.read_config(name)))

    def work(self) -> None:
        Worker(
            self.folder,
            self.trials,
            [Resources()],
            0,
            self.stop,
            self.messages.append,
            start=self.start,
        ).run()

    def states(self) -> list[str]:
        return [self.folder.state(name) for name in self.trials.names()]

    def study(self):
        return self.trials._study


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr("t2t_flax.extensions.sweeps.worker._POLL_INTERVAL", 0.001)
    monkeypatch.setattr("t2t_flax.extensions.sweeps.worker._CLAIM_INTERVAL", 0.01)


@pytest.fixture(params=["journal", "database"])
def storage(request, tmp_path) -> str:
    return "" if request.param == "journal" else f"sqlite:///{tmp_path}/study.db"


def test_search_learns_and_a_second_worker_finds_nothing_to_do(tmp_path, storage):
    sweep = SearchSweep(tmp_path / "s", storage=storage, count=14)
    sweep.work()
    again = SearchSweep(tmp_path / "s", storage=storage, count=14)
    again.work()
    trials = again.study().trials
    assert (
        len(trials) == 14
        and {trial.state.name for trial in trials} == {"COMPLETE"}
        and not again.messages
    )
    assert min(abs(math.log10(t.params["optimizer.peak_lr"]) + 2) for t in trials[10:]) < 0.5
    assert all(trial.intermediate_values[2] == trial.value for trial in trials)
    listed = read_sweep(tmp_path / "s")["trials"]
    assert list(listed) == again.trials.names() and all(
        trial["overrides"].keys() == SPACE.keys() for trial in listed.values()
    )
    assert {float(t["overrides"]["optimizer.peak_lr"]) for t in listed.values()} == {
        t.params["optimizer.peak_lr"] for t in trials
    }


def test_two_workers_share_a_search(tmp_path, storage):
    """Each trial trains once, and there are not more than `count`."""
    workers = [SearchSweep(tmp_path / "s", storage=storage) for _ in range(2)]
    threads = [threading.Thread(target=worker.work) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    starts = [
        (workers[0].folder.workdir(name) / "starts").read_text()
        for name in workers[0].trials.names()
    ]
    assert starts == ["."] * 6 and workers[1].states() == ["complete"] * 6


def test_proposals_do_not_depend_on_the_worker(tmp_path):
    """One worker proposes six trials.

    In another sweep three workers propose two each, the second with a larger count.
    """
    SearchSweep(tmp_path / "a", method="random").work()
    for count in (2, 4, 6):
        SearchSweep(tmp_path / "b", method="random", count=count, extend=True).work()
    assert list(read_sweep(tmp_path / "a")["trials"]) == list(read_sweep(tmp_path / "b")["trials"])


def test_trial_of_a_killed_worker_goes_on_in_its_workdir(tmp_path):
    sweep = SearchSweep(tmp_path / "s", count=2)
    script = Path(__file__).with_name("killed_worker.py")
    done = subprocess.run([sys.executable, script, tmp_path / "s"], timeout=120)
    assert done.returncode == -signal.SIGKILL and sweep.states() == ["stopped"]
    sweep.work()
    starts = [
        len((sweep.folder.workdir(name) / "starts").read_text()) for name in sweep.trials.names()
    ]
    assert sweep.states() == ["complete"] * 2 and starts == [2, 1]
    assert [trial.state.name for trial in sweep.study().trials] == ["COMPLETE"] * 2


def test_worker_that_died_between_two_writes_loses_nothing(tmp_path, monkeypatch):
    """First after it asked Optuna for a proposal, then before it reported a complete trial."""
    sweep = SearchSweep(tmp_path / "s", count=2)
    mine = tmp_path / "s" / "configs" / "000,mine.json"
    mine.parent.mkdir()
    mine.write_text("mine")
    for target, name in ((optuna.trial.Trial, "set_user_attr"), (SearchTrials, "end")):
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(target, name, lambda *_: 1 / 0)
            sweep.work()
        sweep.stop.clear()
    assert (
        len(list(mine.parent.iterdir())) == 2 and mine.exists() and sweep.states() == ["complete"]
    )
    sweep.work()
    assert [trial.state.name for trial in sweep.study().trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert sweep.states() == ["complete"] * 2


def test_stopped_search_goes_on(tmp_path, storage):
    sweep = SearchSweep(
        tmp_path / "s", storage=storage, count=1, behave=lambda config: until_stopped
    )
    worker = threading.Thread(target=sweep.work)
    worker.start()
    wait_for(lambda: list((tmp_path / "s").glob("trials/*/starts")), "the first update")
    sweep.stop.set()
    worker.join(60)
    assert sweep.states() == ["stopped"]
    again = SearchSweep(
        tmp_path / "s", storage=storage, count=1, behave=lambda config: until_stopped
    )
    again.work()
    assert again.states() == ["complete"] and again.study().best_value == 2.0


@pytest.mark.parametrize(
    "behaviour, state, told", [(diverges, "diverged", "PRUNED"), (fails, "failed", "FAIL")]
)
def test_what_optuna_learns_from_a_trial_without_a_value(tmp_path, behaviour, state, told):
    """A diverged trial is worse than any complete one.

    A failed one says nothing about its config.
    """
    sweep = SearchSweep(
        tmp_path / "s", behave=lambda config: behaviour if config.optimizer.peak_lr > 3e-3 else ok()
    )
    sweep.work()
    pairs = list(
        zip(sweep.states(), (trial.state.name for trial in sweep.study().trials), strict=True)
    )
    assert set(pairs) == {(state, told), ("complete", "COMPLETE")}


def evaluated(values: list[float]):
    """A training that evaluates every 10 of 100 updates, and ends early if it is stopped."""

    def steps(training):
        for i, value in enumerate(values, 1):
            training.log(10 * i, valid_nll=value)
            yield None
            if training.terminated:
                yield 75
        training.complete()
        yield 0

    return steps


@pytest.mark.parametrize("prune", ["median", "halving"])
def test_bad_trials_are_pruned(tmp_path, storage, prune):
    """From a quarter of the updates on. The first trial is the best one."""
    ranks = iter(range(3))

    def behave(config):
        rank = next(ranks)
        return evaluated([5.0 + rank - i / 10 for i in range(10)])

    sweep = SearchSweep(tmp_path / "s", storage=storage, prune=prune, count=3, behave=behave)
    sweep.work()
    assert sweep.states() == ["complete", "pruned", "pruned"]
    trials = sweep.study().trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED", "PRUNED"]
    assert [len(trial.intermediate_values) for trial in trials] == [10, 3, 3]
    sweep.work()
    assert len(sweep.study().trials) == 3, "pruned trials are not repeated"


def test_invalid_combinations_are_proposed_again(tmp_path):
    """Three heads do not divide the width."""
    sweep = SearchSweep(
        tmp_path / "s", space=SPACE | {"model.num_heads": choice(3, 4)}, method="random"
    )
    sweep.work()
    trials = sweep.study().trials
    assert len(sweep.trials.names()) == 6 and {
        t.params["model.num_heads"] for t in trials if t.state.name == "FAIL"
    } == {3}
    impossible = SearchSweep(tmp_path / "t", space={"model.num_heads": choice(3)})
    with refused("num_heads"):
        impossible.work()


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_no_config_is_trained_twice(tmp_path, method):
    """Nine rows of the space are six configs."""
    space = {"model.dropout": choice(0.0, 0.1, 0.2), "model.num_heads": choice(2, 4, "4")}
    sweep = SearchSweep(tmp_path / "s", space=space, count=12, method=method)
    sweep.work()
    configs = [sweep.folder.config(name).read_text() for name in sweep.trials.names()]
    assert len(configs) == len(set(configs)) == 6 and set(sweep.states()) == {"complete"}
    proposals = len(sweep.study().trials)
    sweep.work()
    assert len(sweep.study().trials) == proposals, "an exhausted space gives no more proposals"


def test_rows_that_a_user_enqueues_are_trained_first(tmp_path):
    sweep = SearchSweep(tmp_path / "s", count=2)
    wanted = {"optimizer.peak_lr": 0.05, "model.num_heads": 2}
    sweep.study().enqueue_trial(wanted, user_attrs={"name": "mine"})
    sweep.work()
    first, second = sweep.study().trials
    assert first.params == wanted != second.params and sweep.states() == ["complete"] * 2


def test_torn_line_of_a_journal_is_removed(tmp_path):
    """A worker was killed, or the disk was full, in the middle of a write."""
    SearchSweep(tmp_path / "s", count=2).work()
    journal = tmp_path / "s" / "optuna.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "worker')
    sweep = SearchSweep(tmp_path / "s", count=3, extend=True)
    assert journal.read_bytes().startswith(whole) and sweep.states() == ["complete"] * 2
    sweep.work()
    assert SearchSweep(tmp_path / "s", count=3).states() == ["complete"] * 3


@pytest.mark.parametrize("damage", [b"not json\n", b'{"op_code": 99}\n', b"\xff\n"])
def test_damaged_journal_is_named(tmp_path, damage):
    SearchSweep(tmp_path / "s", count=1).work()
    journal = tmp_path / "s" / "optuna.journal"
    first, rest = journal.read_bytes().split(b"\n", 1)
    journal.write_bytes(first + b"\n" + damage + rest)
    with refused("optuna.journal"):
        SearchSweep(tmp_path / "s", count=1)


def test_lock_that_a_killed_worker_left_is_taken_over(tmp_path, monkeypatch):
    lock = functools.partial(optuna.storages.journal.JournalFileOpenLock, grace_period=3)
    monkeypatch.setattr(optuna.storages.journal, "JournalFileOpenLock", lock)
    (tmp_path / "s").mkdir()
    sweep = SearchSweep(tmp_path / "s", count=1)
    (tmp_path / "s" / "optuna.journal.lock").touch()
    sweep.work()
    assert sweep.states() == ["complete"]


def test_database_that_cannot_be_reached_is_named_without_its_password(tmp_path):
    with refused("sqlite:////no/such/study.db"):
        SearchSweep(tmp_path / "s", storage="sqlite:////no/such/study.db")
    for number, password in enumerate(("secret", "sec?ret", "sec/ret#s", "sec:ret@s")):
        with refused("nodb://host/x") as caught:
            SearchSweep(tmp_path / f"{number}", storage=f"nodb://me:{password}@host/x")
        assert "sec" not in str(caught.value) + (tmp_path / f"{number}" / "sweep.json").read_text()


def test_changed_search_is_refused(tmp_path):
    SearchSweep(tmp_path / "s")
    for change in ({"count": 7}, {"space": SPACE | {"train.warmup": integers(1, 2)}}, {"seed": 1}):
        with refused("search:"):
            SearchSweep(tmp_path / "s", **change)
