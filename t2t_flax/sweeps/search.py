"""Trials that follow from those before: Optuna proposes them, and stops bad ones early. Its journal lies in the sweep's
folder, so that any worker goes on from it.
"""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.errors import UserError
from t2t_flax.files import write_whole
from t2t_flax.sweeps.folder import COMPLETE, ENDED, FAILED, PRUNED, Folder, add_configs, asked
from t2t_flax.sweeps.results import trial_score
from t2t_flax.sweeps.space import Range, Search, minimized, rounded
from t2t_flax.sweeps.trials import one, row_names
from t2t_flax.sweeps.worker import Queue
from t2t_flax.telemetry.metrics import read_metrics

_MISSING = "this search needs Optuna: pip install 't2t-flax[sweep]'."


class Searched(Queue):
    """The queue of an Optuna search. Raises UserError where Optuna is not installed."""

    def __init__(self, folder: Folder, search: Search):
        try:
            import optuna
        except ImportError:
            raise UserError(_MISSING) from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._folder, self._search = optuna, folder, search
        backend = optuna.storages.journal.JournalFileBackend(str(folder.path / "optuna.journal"))
        with self._locked():
            self._study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name="sweep",
                direction="minimize" if minimized(search.metric) else "maximize",
                pruner=self._pruner() if search.prune else optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
        self._reported: dict[str, int] = {}

    def names(self) -> list[str]:
        return list(asked(self._folder.path))

    def finished(self) -> bool:
        return len(self.names()) >= self._search.count

    def more(self) -> bool:
        with self._locked():
            self._settle()
            number = len(self.names())
            if number >= self._search.count:
                return False
            # A sampler for each trial, so that what it draws does not depend on which worker asks.
            seed = self._search.seed * 100_003 + number
            sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            if self._search.method == "random":
                sampler = self._optuna.samplers.RandomSampler(seed=seed)
            self._study.sampler = sampler
            proposed = self._study.ask()
            row = {key: _suggest(proposed, key, of) for key, of in self._search.space.items()}
            name = f"{number:03d},{row_names([row])[0]}"
            trial = one(str(self._folder.base), {}, row, name, 0)
            add_configs(self._folder, [trial])
            told = {"name": trial.name, "row": name, "seed": 0, "overrides": trial.overrides, "number": proposed.number}
            write_whole(self._folder.path / "asked" / f"{number:05d}.json", json.dumps(told, indent=2) + "\n")
        return True

    def prune(self, name: str) -> bool:
        if not self._search.prune:
            return False
        trial = self._running(name)
        if trial is None:
            return False
        for line in read_metrics(self._folder.workdir(name)):
            if self._search.metric in line and line["step"] > self._reported.get(name, -1):
                self._reported[name] = line["step"]
                trial.report(line[self._search.metric], line["step"])
                if trial.should_prune():  # asked at every value: the pruner notes who came how far
                    return True
        return False

    def ended(self, name: str, outcome: str) -> None:
        self.prune(name)  # values since the last look: later trials are measured against them
        with self._locked():
            self._settle()

    def _pruner(self) -> Any:
        """Of those that reach a quarter of the updates the better half goes on, and so at half of them."""
        steps = config_lib.from_json(self._folder.base.read_text()).train.steps
        return self._optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, steps // 4), reduction_factor=2)

    def _settle(self) -> None:
        """Tells Optuna how trials ended of which it does not know yet, also those of a worker that died before it could."""
        states = self._optuna.trial.TrialState
        running = {trial.number for trial in self._study.get_trials(deepcopy=False) if trial.state == states.RUNNING}
        for name, told in asked(self._folder.path).items():
            state = self._folder.state(name) if told["number"] in running else ""
            if state not in ENDED:
                continue
            value = trial_score(self._folder, name, self._search.metric) if state == COMPLETE else None
            if state == PRUNED:
                self._study.tell(told["number"], state=states.PRUNED)
            elif state == FAILED or value is None or value != value:
                self._study.tell(told["number"], state=states.FAIL)
            else:
                self._study.tell(told["number"], value)

    def _running(self, name: str) -> Any:
        number = asked(self._folder.path)[name]["number"]
        frozen = next((t for t in self._study.get_trials(deepcopy=False) if t.number == number), None)
        if frozen is None or frozen.state != self._optuna.trial.TrialState.RUNNING:
            return None
        return self._optuna.trial.Trial(self._study, frozen._trial_id)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder.path / "search.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _suggest(trial: Any, key: str, of: Range) -> Any:
    if of.choices:
        return trial.suggest_categorical(key, list(of.choices))
    if of.whole:
        return trial.suggest_int(key, round(of.low), round(of.high), log=of.log)
    return rounded(trial.suggest_float(key, of.low, of.high, log=of.log))
