"""The training loop: one function that reads from top to bottom."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable

import jax
import psutil

from t2t_flax.config import Config
from t2t_flax.data.task import task_class
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor, StopRequested
from t2t_flax.monitoring.progress import Progress
from t2t_flax.monitoring.stragglers import Pace
from t2t_flax.monitoring.timers import Clock
from t2t_flax.training.checksums import compile_checksums
from t2t_flax.training.due import Due, due
from t2t_flax.training.prefetch import Prefetcher
from t2t_flax.training.resume import (
    TrainProgress,
    finish_saves_on_error,
    on_disk,
    open_checkpoints,
    restore_or_init,
    save,
)
from t2t_flax.training.setup import TrainingSetup, ValidationLoss, compile_train_steps
from t2t_flax.training.train_logger import TrainLogger
from t2t_flax.training.train_state import TrainState


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the loop ended: `reason` is "steps", "patience" or the name of a signal. state: None where it has been dropped to
    make room.
    """

    state: TrainState | None
    step: int
    reason: str
    seconds: dict[str, float]

    @property
    def finished(self) -> bool:
        return self.reason in ("steps", "patience")


def train(
    run: TrainingSetup,
    score: Callable[..., float] | None,
    say: Callable[[str], None] = print,
    supervisor: RunSupervisor | None = None,
) -> Outcome:
    """Trains from the newest checkpoint (or from scratch) to config.train.steps.

    `score(params, after_batch, compiling)` scores the validation set, calling `after_batch()` now and then, and compiles
    within `compiling()`. Update t takes batch t - 1. `watch`: of the processes of the run; default: this one alone.
    Raises NonFiniteUpdate; UserError for a checkpoint of another model and for a full disk.
    """
    if supervisor is None:
        with RunSupervisor(ProcessGroup(), run.config.distributed) as supervisor:
            return train(run, score, say, supervisor)
    config = run.config
    with supervisor.exit_on_signal("restoring and compiling"):
        checkpoints = open_checkpoints(run, supervisor.group)
        state, done = restore_or_init(run, checkpoints, say)
        checkpoints.prepare_to_save()
        clock = Clock(done.seconds)
        with clock.measure("compile"):
            programs = compile_train_steps(run)
            valid_loss = validation_loss(run)
            compile_checksums(state)
        log = TrainLogger(run, clock, done)
        pace = Pace(supervisor.group, config.distributed.straggler_share)
        supervisor.group.barrier("compiled")  # who compiles longer than the others does not hang
    with (
        finish_saves_on_error(checkpoints),
        supervisor.expect_progress(),
        Progress("train", config.train.steps, start=done.step, quiet=not supervisor.group.is_lead) as bar,
        Prefetcher(run.batches, run.mesh, run.corpus.train.lengths, done.step, config.train.steps) as feed,
    ):
        reason = finished_before(run, done) or "steps"
        first, last = done.step + 1, config.train.steps if reason == "steps" else done.step
        for step in range(done.step if done.evaluation_due else first, last + 1):
            if step >= first:
                log.profile.before(step)
                with clock.measure("data"):
                    fed = feed.next()
                with clock.measure("step"), jax.transfer_guard("disallow"):
                    state, metrics = programs[fed.key](state, fed.arrays)
                log.took(step, fed, metrics, bar)  # waits for the update before: the device always has one queued
                if supervisor.group.count > 1 and step % config.log.every_steps == 0:
                    log.flush(bar)  # nothing is in flight while the devices are compared
                    bar.say_if(pace.compare(clock.seconds))
                if step == first:
                    log.flush(bar)
                    started = psutil.Process().create_time()
                    say(f"first update {time.time() - started:.1f} s after the start of the process")

            on_disk(checkpoints, checkpoints.check_for_errors)
            metric, asked, now = None, supervisor.should_stop(), due(run, step)
            done.evaluation_due = asked and now.evaluation
            if now.evaluation and not asked:
                log.flush(bar)
                try:
                    with clock.measure("eval"):
                        values = evaluate(now, config, state, valid_loss, score, supervisor)
                except StopRequested:  # nothing of it is kept: the resumed run evaluates first
                    asked = done.evaluation_due = True
                else:
                    metric = note_metric(done, values, step, config.eval.metric)
                    log.write(step, values)
                    bar.say(f"step {step}: " + "  ".join(f"{k} {v:.4f}" for k, v in values.items()))
            stop = patience_is_used_up(run, done)
            ends = stop or asked or step == config.train.steps
            if ends or now.checkpoint or (metric is not None and config.checkpoint.keep_best):
                log.flush(bar)
                log.send()
                # It may wait for the save before it, to which Orbax gives an hour; the first one compiles.
                with clock.measure("save"), supervisor.suspend_hang_timeout():
                    done.step, done.seconds, done.scheduled = step, clock.seconds, now.checkpoint or stop
                    save(run, checkpoints, state, done, metric)
            if asked or stop:
                reason = supervisor.signal if asked else "patience"
                break
        else:
            step = max(done.step, last)
    with clock.measure("save"):
        on_disk(checkpoints, checkpoints.wait)
        checkpoints.close()
    log.close()
    return Outcome(state, step, reason, clock.rounded())


def patience_is_used_up(run: TrainingSetup, done: TrainProgress) -> bool:
    """Whether the run has had as many evaluations without a better metric as it is to have."""
    return bool(run.config.eval.patience) and done.evaluations_without_better >= run.config.eval.patience


def finished_before(run: TrainingSetup, done: TrainProgress) -> str:
    """Why a run that is restored has nothing to train any more, "steps" or "patience"; empty where it has."""
    if done.evaluation_due:
        return ""
    if done.step and patience_is_used_up(run, done):
        return "patience"
    return "steps" if done.step >= run.config.train.steps else ""


def validation_loss(run: TrainingSetup) -> ValidationLoss | None:
    """The function that scores the validation set, where the config asks for it."""
    if not (run.corpus.valid and (run.config.eval.every_steps or run.config.eval.every_epochs)):
        return None
    besides = run.abstract.opt_state, run.abstract.ema
    return ValidationLoss(run.config, run.model, run.mesh, run.abstract.params, run.corpus.valid, "valid", besides)


def evaluate(
    now: Due, config: Config, state: TrainState, valid_loss: ValidationLoss | None, score, supervisor: RunSupervisor
) -> dict[str, float]:
    """Raises StopRequested where all processes are to stop in the middle of it."""
    values = {}
    if valid_loss and now.loss:
        means = valid_loss(state.eval_params, supervisor.raise_if_stopping)
        values |= {f"valid_{name}": mean for name, mean in means.items()}
        values["valid_ppl"] = math.exp(min(means["nll"], 700.0))
    if now.bleu:
        compiling = functools.partial(supervisor.exit_on_signal, "compiling the search")
        name = task_class(config.data.task).score
        values[f"valid_{name}"] = score(state.eval_params, supervisor.raise_if_stopping, compiling)
    return values


def note_metric(done: TrainProgress, values: dict[str, float], step: int, name: str) -> float | None:
    """The evaluation's metric, higher is better, and its effect on patience; None if this evaluation has none, or one that
    is not finite and so is no better than any other.
    """
    value = values.get(f"valid_{name}")
    if value is None:
        return None
    metric = -value if name in ("nll", "loss") else value
    if not math.isfinite(metric):
        done.evaluations_without_better += 1
        return None
    if done.best_metric is None or metric > done.best_metric:
        done.best_metric, done.best_step, done.evaluations_without_better = metric, step, 0
    else:
        done.evaluations_without_better += 1
    return metric
