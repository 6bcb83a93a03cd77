"""Trials that follow from those before: Optuna proposes them, and stops bad ones early. Its journal lies in the sweep's
folder, so that any worker goes on from it.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.errors import UserError, install_hint
from t2t_flax.evaluation.metrics import lower_is_better
from t2t_flax.filesystem import atomic_write
from t2t_flax.monitoring.metrics_writer import read_metrics
from t2t_flax.sweeps.folder import COMPLETE, ENDED, FAILED, PRUNED, Folder, asked, one_at_a_time
from t2t_flax.sweeps.opening import add_configs
from t2t_flax.sweeps.results import trial_score
from t2t_flax.sweeps.space import Range, Search
from t2t_flax.sweeps.trials import one, row_names
from t2t_flax.sweeps.worker import Queue

_ASKS = 100
"""Proposals in a row that may be no possible config."""
NO_OPTUNA = f"this search needs Optuna: {install_hint('sweep')}."


class Searched(Queue):
    """The queue of an Optuna search. Raises UserError where Optuna is not installed."""

    def __init__(self, folder: Folder, search: Search):
        try:
            import optuna
        except ImportError:
            raise UserError(NO_OPTUNA) from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._folder, self._search = optuna, folder, search
        self._journal = folder.path / "optuna.journal"
        backend = optuna.storages.journal.JournalFileBackend(str(self._journal))
        with self._locked():
            self._study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name="sweep",
                direction="minimize" if lower_is_better(search.metric) else "maximize",
                pruner=self._pruner() if search.prune else optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
        self._reported: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def names(self) -> list[str]:
        return list(asked(self._folder.path))

    def finished(self) -> bool:
        return len(self.names()) >= self._search.count

    def more(self) -> bool:
        with self._locked():
            self._settle()
            if self.finished():
                return False
            for _ in range(_ASKS):
                proposed = self._ask()
                row = {key: _suggest(proposed, key, of) for key, of in self._search.space.items()}
                name = f"{len(self.names()):03d},{row_names([row])[0]}"
                try:
                    trial = one(str(self._folder.base), {}, row, name, 0)
                except UserError as error:  # values that do not go together, such as heads that do not divide d_model
                    self._study.tell(proposed.number, state=self._optuna.trial.TrialState.FAIL)
                    impossible = error
                    continue
                add_configs(self._folder, [trial])
                told = {
                    "name": trial.name,
                    "row": name,
                    "seed": 0,
                    "overrides": trial.overrides,
                    "number": proposed.number,
                }
                place = self._folder.path / "asked" / f"{len(self.names()):05d}.json"
                atomic_write(place, json.dumps(told, indent=2) + "\n")
                return True
        raise UserError(f"{_ASKS} proposals of the search were no possible config, the last one: {impossible}")

    def _ask(self) -> Any:
        """A proposal by a sampler of its own, so that what it draws does not depend on which worker asks."""
        seed = self._search.seed * 100_003 + len(self._study.get_trials(deepcopy=False))
        samplers = self._optuna.samplers
        tpe = self._search.method == "tpe"
        self._study.sampler = (
            samplers.TPESampler(seed=seed, constant_liar=True) if tpe else samplers.RandomSampler(seed=seed)
        )
        return self._study.ask()

    def prune(self, name: str) -> bool:
        if not self._search.prune:
            return False
        metrics = self._folder.workdir(name) / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.exists() else 0
        if size == self._seen.get(name):
            return False
        self._seen[name] = size
        with self._locked():
            trial = self._running(name)
            if trial is None:
                return False
            steps = config_lib.from_json(self._folder.config(name).read_text()).train.steps
            for line in read_metrics(self._folder.workdir(name)):
                # At its last update a trial has nothing left to save.
                if self._search.metric in line and self._reported.get(name, -1) < line["step"] < steps:
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
        states, trials = self._optuna.trial.TrialState, self._study.get_trials(deepcopy=False)
        running = {trial.number for trial in trials if trial.state == states.RUNNING}
        failed = {trial.number: trial for trial in trials if trial.state == states.FAIL}
        again = {trial.user_attrs.get("again") for trial in trials}
        proposals = asked(self._folder.path)
        for number in running - {told["number"] for told in proposals.values()}:  # whose worker died before it noted it
            self._study.tell(number, state=states.FAIL)
        for name, told in proposals.items():
            number = told["number"]
            state = self._folder.state(name) if number in running or number in failed.keys() - again else ""
            if number in failed and state == COMPLETE:  # it was told as failed, and then tried again
                self._tell_again(failed[number], self._score(name))
            if state not in ENDED or number in failed:
                continue
            value = self._score(name) if state == COMPLETE else None
            if state == PRUNED:
                self._study.tell(told["number"], state=states.PRUNED)
            elif state == FAILED or value is None or value != value:
                self._study.tell(told["number"], state=states.FAIL)
            else:
                self._study.tell(told["number"], value)

    def _score(self, name: str) -> float | None:
        """None where the record of a trial is damaged: to the search it failed, and the others go on."""
        try:
            return trial_score(self._folder, name, self._search.metric)
        except UserError:
            return None

    def _tell_again(self, failed: Any, value: float | None) -> None:
        """What Optuna was told of a trial stays: this is one more with the same parameters."""
        if value is not None:
            told = dict(params=failed.params, distributions=failed.distributions, user_attrs={"again": failed.number})
            self._study.add_trial(self._optuna.trial.create_trial(value=value, **told))

    def _running(self, name: str) -> Any:
        number = asked(self._folder.path)[name]["number"]
        frozen = next((t for t in self._study.get_trials(deepcopy=False) if t.number == number), None)
        if frozen is None or frozen.state != self._optuna.trial.TrialState.RUNNING:
            return None
        return self._optuna.trial.Trial(self._study, frozen._trial_id)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with one_at_a_time(self._folder.path / "search.lock"):
            _cut_short_line(self._journal)
            yield


def _cut_short_line(journal: Path) -> None:
    """Takes away a last line that a full disk or a crash left unfinished: Optuna would write the next one behind it, and
    could then read neither.
    """
    if not journal.exists() or not journal.stat().st_size:
        return
    with journal.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def _suggest(trial: Any, key: str, of: Range) -> Any:
    if of.choices:
        return trial.suggest_categorical(key, list(of.choices))
    if of.whole:
        return trial.suggest_int(key, round(of.low), round(of.high), log=of.log)
    return of.rounded(trial.suggest_float(key, of.low, of.high, log=of.log))
