"""Searches whose trials depend on earlier results: Optuna proposes them, and stops poor ones.

The folder is the only record: the Optuna study is rebuilt from the proposals and results in it, so any worker continues
the search after any kill.
"""

import json
import math
from typing import Any

from t2t_flax.errors import UserError, install_hint
from t2t_flax.extensions.sweeps.folder import COMPLETE, FAILED, PRUNED, Folder, exclusive, read_proposals
from t2t_flax.extensions.sweeps.results import trial_score
from t2t_flax.extensions.sweeps.space import Range, Search
from t2t_flax.extensions.sweeps.trials import make_trial, row_names
from t2t_flax.extensions.sweeps.worker import TrialQueue
from t2t_flax.filesystem import atomic_write
from t2t_flax.tasks import lower_is_better
from t2t_flax.training.progress import read_metrics

_MAX_IMPOSSIBLE = 100
"""Proposals in a row that may be invalid configs."""
NO_OPTUNA = f"this search needs Optuna: {install_hint('sweep')}."


class SearchQueue(TrialQueue):
    """The trials of an adaptive search. Raises UserError if Optuna is not installed."""

    def __init__(self, folder: Folder, search: Search):
        try:
            import optuna
        except ImportError:
            raise UserError(NO_OPTUNA) from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._folder, self._search = optuna, folder, search
        self._lower_is_better = lower_is_better(search.metric)
        self._distributions = {key: self._distribution(values) for key, values in search.space.items()}
        self._metrics_sizes: dict[str, int] = {}
        self._judged: set[tuple[str, int]] = set()

    def names(self) -> list[str]:
        return list(read_proposals(self._folder.path))

    def is_final(self) -> bool:
        return len(self.names()) >= self._search.count

    def propose(self) -> bool:
        """Adds one trial. Raises UserError if no valid config is proposed in many attempts."""
        with exclusive(self._folder.path / "search.lock"):
            count = len(self.names())
            if count >= self._search.count:
                return False
            study = self.study()
            for _ in range(_MAX_IMPOSSIBLE):
                study.sampler = self._sampler(len(study.get_trials(deepcopy=False)))
                proposal = study.ask(self._distributions)
                row = {key: self._search.space[key].rounded(value) for key, value in proposal.params.items()}
                name = f"{count:03d},{row_names([row])[0]}"
                try:
                    trial = make_trial(str(self._folder.base), {}, row, name, 0)
                except UserError as error:  # values that are invalid together, such as heads that do not divide d_model
                    study.tell(proposal, state=self._optuna.trial.TrialState.FAIL)
                    reason = error
                    continue
                self._folder.write_config(trial)
                stored = {"name": trial.name, "row": name, "seed": 0, "overrides": trial.overrides}
                atomic_write(self._folder.proposals / f"{count:05d}.json", json.dumps(stored, indent=2) + "\n")
                return True
        raise UserError(f"the search proposed {_MAX_IMPOSSIBLE} invalid configs in a row, the last one: {reason}")

    def _sampler(self, trials: int) -> Any:
        """A sampler whose draws depend only on the search's seed and the trials so far, not on the worker."""
        seed = self._search.seed * 100_003 + trials
        if self._search.method == "tpe":
            return self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        return self._optuna.samplers.RandomSampler(seed=seed)

    def study(self) -> Any:
        """An Optuna study of all trials so far."""
        direction = "minimize" if self._lower_is_better else "maximize"
        study = self._optuna.create_study(direction=direction)
        for name, proposal in read_proposals(self._folder.path).items():
            study.add_trial(self._frozen_trial(name, proposal["overrides"]))
        return study

    def _frozen_trial(self, name: str, overrides: dict[str, str]) -> Any:
        states = self._optuna.trial.TrialState
        ended = {COMPLETE: states.COMPLETE, FAILED: states.FAIL, PRUNED: states.PRUNED}
        state, value = ended.get(self._folder.state(name), states.RUNNING), None
        if state == states.COMPLETE:
            try:
                value = trial_score(self._folder, name, self._search.metric)
            except UserError:  # a damaged record costs its trial, not the search
                pass
            if value is None:
                state = states.FAIL
        # Optuna ignores trials that fail. A config that diverges or does not fit is a result, worse than any other.
        if self._folder.cause(name) or state == states.FAIL and self._is_never_finite(name):
            state, value = states.COMPLETE, math.inf if self._lower_is_better else -math.inf
        return self._optuna.trial.create_trial(
            state=state,
            value=value,
            params={key: values.parse(overrides[key]) for key, values in self._search.space.items()},
            distributions=self._distributions,
            intermediate_values=dict(self._evaluations(name)),
        )

    def _is_never_finite(self, name: str) -> bool:
        """Whether the metric was evaluated and never finite."""
        values = [value for _, value in self._evaluations(name)]
        return bool(values) and not any(map(math.isfinite, values))

    def _distribution(self, values: Range) -> Any:
        kinds = self._optuna.distributions
        if values.choices:
            return kinds.CategoricalDistribution(list(values.choices))
        if values.whole:
            return kinds.IntDistribution(round(values.low), round(values.high), log=values.log)
        return kinds.FloatDistribution(values.low, values.high, log=values.log)

    def should_prune(self, name: str) -> bool:
        """By successive halving, or by Optuna's median pruning: from a quarter of the updates on, a trial stops whose best
        evaluation is worse than the median of the complete trials at the same update. At its last update stopping would save
        nothing.
        """
        metrics = self._folder.workdir(name) / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.exists() else 0
        if not self._search.prune or size == self._metrics_sizes.get(name):
            return False
        self._metrics_sizes[name] = size
        steps = self._folder.read_config(name).train.steps
        trial = self._frozen_trial(name, read_proposals(self._folder.path)[name]["overrides"])
        if not trial.intermediate_values or trial.last_step >= steps:
            return False
        if self._search.prune == "halving":
            return self._is_in_worse_half(name, steps)
        pruner = self._optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=steps // 4)
        return pruner.prune(self.study(), trial)

    def _is_in_worse_half(self, name: str, steps: int) -> bool:
        """Successive halving: at a quarter and at half of the updates a trial continues only if its metric is in the better half
        of those that have come as far, its own included. (Optuna's rule keeps what it has judged in the study, which is rebuilt.)
        """
        resumed_at = self._folder.status(name).start_step
        for rung in (max(1, steps // 4), max(1, steps // 2)):
            first = {each: next((v for at, v in self._evaluations(each) if at >= rung), None) for each in self.names()}
            if first[name] is None or rung <= resumed_at or (name, rung) in self._judged:
                continue
            self._judged.add((name, rung))
            values = [value for value in first.values() if value is not None and not math.isnan(value)]
            values.sort(reverse=not self._lower_is_better)
            if first[name] not in values[: max(1, len(values) // 2)]:
                return True
        return False

    def _evaluations(self, name: str) -> list[tuple[int, float]]:
        metric = self._search.metric
        return [(line["step"], line[metric]) for line in read_metrics(self._folder.workdir(name)) if metric in line]
