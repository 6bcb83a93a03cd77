"""Searches by Optuna: proposals, pruning and values of trials.

All workers share one study. The study is in `optuna.journal` in the sweep's folder, or in a
database. The locks of the folder say which trials are being trained, so a trial of a killed worker
goes on at once in its workdir. (Optuna's journal has no heartbeats, and its databases' heartbeats
would mark such a trial as failed.)
"""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config.overrides import values_of_user
from t2t_flax.errors import UserError, first_line, require
from t2t_flax.extensions.shared.addresses import without_credentials
from t2t_flax.extensions.sweeps.folder import COMPLETE, DIVERGED, PRUNED, Folder, exclusive
from t2t_flax.extensions.sweeps.results import evaluations, trial_score
from t2t_flax.extensions.sweeps.space import Search
from t2t_flax.extensions.sweeps.trials import make_trial, search_row_name
from t2t_flax.tasks import lower_is_better

_MOST_INVALID = 100
"""Maximum invalid configs in a row among the proposals."""
_DRAWS = 100
"""Draws per row after which a space without another row counts as exhausted."""
_NAME = "t2t_flax_trial"
"""User attribute of a trial: its folder.

Users set their own attributes on trials that they enqueue.
"""


class SearchTrials:
    """Trials of a search, for `worker.Worker`.

    Raises UserError without Optuna, and for a study that cannot be read.
    """

    def __init__(self, folder: Folder, sweep: dict[str, Any], storage: str = ""):
        require("optuna", "sweep", "a search")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._folder = optuna, folder
        self._search = search = Search.from_json(sweep["search"])
        self._lower_is_better = lower_is_better(search.metric)
        place = without_credentials(storage) or folder.path / "optuna.journal"
        try:
            self._study = optuna.create_study(
                storage=_storage(storage, folder.path / "optuna.journal"),
                study_name=sweep["study"]["name"],
                direction="minimize" if self._lower_is_better else "maximize",
                load_if_exists=True,
            )
        except Exception as error:  # noqa: BLE001 - each database has errors of its own
            raise UserError(
                f"the search in {place} cannot be read: {type(error).__name__}: {first_line(error)}"
            ) from None
        self._seen: dict[str, int] = {}

    def names(self) -> list[str]:
        return [trial.user_attrs[_NAME] for trial in self._trials() if _NAME in trial.user_attrs]

    def open(self) -> list[str]:
        """Return the trials whose end the study does not know."""
        states = self._optuna.trial.TrialState
        return [
            t.user_attrs[_NAME]
            for t in self._trials()
            if t.state == states.RUNNING and _NAME in t.user_attrs
        ]

    def propose(self) -> bool:
        """Add one trial with a new config.

        Returns False if there are enough trials, or no other config in the space. Raises UserError
        if no valid config is proposed in many attempts.
        """
        states = self._optuna.trial.TrialState
        fixed = values_of_user(config_lib.from_json(self._folder.base.read_text()))
        with exclusive(self._folder.path / "search.lock"):
            trials = self._trials()
            for trial in trials:
                # Drop a trial whose worker died in the lines below.
                if trial.state == states.RUNNING and _NAME not in trial.user_attrs:
                    self._folder.config(f"{_row_name(trial)},seed=0").unlink(missing_ok=True)
                    self._study.tell(trial.number, state=states.FAIL)
            names, reason = self.names(), None
            if len(names) >= self._search.count:
                return False
            proposed = [dict(trial.params) for trial in trials]
            configs = {self._folder.config(name).read_text() for name in names}
            for number in range(len(trials), len(trials) + _MOST_INVALID):
                if (other := self._other_row(proposed, number)) is None:
                    if reason and not names:
                        break
                    return False
                self._study.sampler = self._sampler(number)
                proposal = self._study.ask(self._search.space)
                repeated = proposal.params in proposed
                proposed.append(proposal.params)
                try:
                    trial = make_trial(
                        str(self._folder.base), fixed, proposal.params, _row_name(proposal), 0
                    )
                    if not repeated and config_lib.to_json(trial.config) not in configs:
                        self._folder.write_config(trial)
                        proposal.set_user_attr(_NAME, trial.name)
                        return True
                except UserError as error:  # such as heads that do not divide d_model
                    reason = f"{_row_name(proposal)}: {error}"
                self._study.tell(proposal, state=states.FAIL)
                if repeated:
                    self._study.enqueue_trial(other)
        raise UserError(
            f"the search proposed only invalid or repeated configs, the last error: {reason}"
        )

    def _other_row(self, proposed: list[dict[str, Any]], number: int) -> dict[str, Any] | None:
        """Return a random row of the space that was not proposed; None if there is none."""
        rng = random.Random(self._search.seed * 100_003 + number)
        for _ in range(_DRAWS * (len(proposed) + 1)):
            row = {key: _draw(values, rng) for key, values in self._search.space.items()}
            if row not in proposed:
                return row
        return None

    def should_prune(self, name: str) -> bool:
        """Report a running trial's evaluations to Optuna; return whether to stop it for good."""
        metrics = self._folder.workdir(name) / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.exists() else 0
        if size == self._seen.get(name, 0):
            return False
        self._seen[name] = size
        stored = self._trial(name)
        trial = self._optuna.trial.Trial(self._study, stored._trial_id)
        new = [
            (s, x)
            for s, x in evaluations(self._folder, name, self._search.metric)
            if s not in stored.intermediate_values
        ]
        for step, value in new:
            trial.report(value, step)
        steps = self._folder.read_config(name).train.steps
        # At the end, stopping saves nothing.
        if not self._search.prune or not new or new[-1][0] >= steps:
            return False
        pruners = self._optuna.pruners
        first = max(1, steps // 4)
        if self._search.prune == "halving":
            self._study.pruner = pruners.SuccessiveHalvingPruner(
                min_resource=first, reduction_factor=2
            )
        else:
            self._study.pruner = pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=first)
        return trial.should_prune()

    def end(self, name: str) -> None:
        """Tell the study how a trial has ended.

        A diverged trial counts as pruned: Optuna learns from it as from one that is worse than
        every complete trial.
        """
        states, state = self._optuna.trial.TrialState, self._folder.state(name)
        value = None
        if state == COMPLETE:
            with contextlib.suppress(UserError):  # a damaged record costs its trial, not the search
                value = trial_score(self._folder, name, self._search.metric)
        told = (
            states.PRUNED
            if state in (PRUNED, DIVERGED)
            else states.FAIL
            if value is None
            else states.COMPLETE
        )
        number = self._trial(name).number
        self._study.tell(number, value, state=told, skip_if_finished=True)

    def _trials(self) -> list[Any]:
        return self._study.get_trials(deepcopy=False)

    def _trial(self, name: str) -> Any:
        return next(trial for trial in self._trials() if trial.user_attrs.get(_NAME) == name)

    def _sampler(self, number: int) -> Any:
        """Return a sampler that depends on the search's seed and the number of trials so far.

        It does not depend on the worker.
        """
        seed = self._search.seed * 100_003 + number
        if self._search.method == "tpe":
            return self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        return self._optuna.samplers.RandomSampler(seed=seed)


def _row_name(trial: Any) -> str:
    return f"{trial.number:03d},{search_row_name(trial.params)}"


def _draw(values: Any, rng: random.Random) -> Any:
    """Return a random value of a distribution of Optuna."""
    if choices := getattr(values, "choices", None):
        return rng.choice(choices)
    if isinstance(values.low, int):
        return rng.randrange(values.low, values.high + 1, values.step)
    return rng.uniform(values.low, values.high)


def _storage(url: str, journal: Path) -> Any:
    """Return Optuna's storage in a database, or in the file `journal`."""
    from optuna import storages
    from optuna.storages import journal as journals

    if url:
        return storages.RDBStorage(url)
    journal.parent.mkdir(parents=True, exist_ok=True)
    # O_EXCL works on NFS 3 and later, and a lock that a killed worker has left is taken over after
    # 30 s.
    lock = journals.JournalFileOpenLock(str(journal))
    backend = journals.JournalFileBackend(str(journal), lock)
    _cut_torn_line(journal, lock)
    return storages.JournalStorage(backend)


def _cut_torn_line(journal: Path, lock: Any) -> None:
    """Remove a line that was not written to its end.

    Optuna would append to it, and refuse the file from then on.
    """
    lock.acquire()
    try:
        with journal.open("r+b") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
    finally:
        lock.release()
    for number, line in enumerate(content.splitlines()[: content.count(b"\n")], 1):
        try:
            json.loads(line)
        except ValueError:
            raise ValueError(f"line {number} is damaged: remove it") from None
