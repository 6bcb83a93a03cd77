"""Several runs that differ in scalars alone, trained by one program: a trial axis before everything that a run carries,
vectorised, and divided over the devices. Each keeps a workdir of its own, as if it were alone.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from t2t_flax.config.scalars import share_a_program
from t2t_flax.config.sharding_rules import MESH_AXES
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor, StopRequested
from t2t_flax.monitoring import memory
from t2t_flax.monitoring.progress import Progress
from t2t_flax.monitoring.timers import Clock
from t2t_flax.training.checksums import compile_checksums
from t2t_flax.training.divergence import NonFiniteUpdate
from t2t_flax.training.due import Due, due
from t2t_flax.training.loop import Outcome, evaluate, finished_before, note_metric, patience_is_used_up, validation_loss
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.prefetch import Prefetcher
from t2t_flax.training.resume import (
    TrainProgress,
    finish_saves_on_error,
    on_disk,
    open_checkpoints,
    restore_or_init,
    save,
)
from t2t_flax.training.scalars import scalars, with_scalars
from t2t_flax.training.setup import TrainingSetup, batch_struct, compiler_options
from t2t_flax.training.train_logger import TrainLogger
from t2t_flax.training.train_state import TrainState
from t2t_flax.training.train_step import train_step

TRIAL = "trial"


def trial_mesh(count: int, devices: list | None = None) -> jax.sharding.Mesh:
    """A mesh whose first axis divides `count` trials over as many devices as divide them evenly; the others are 1."""
    devices = jax.devices() if devices is None else devices
    size = max(n for n in range(1, min(count, len(devices)) + 1) if count % n == 0)
    grid = np.array(devices[:size]).reshape(size, *(1 for _ in MESH_AXES))
    return jax.sharding.Mesh(grid, (TRIAL, *MESH_AXES), axis_types=(AxisType.Auto,) * (1 + len(MESH_AXES)))


class Stack:
    """The program of runs that `share_a_program`, and their states with a trial axis."""

    def __init__(self, runs: list[TrainingSetup], mesh: jax.sharding.Mesh):
        if not all(share_a_program(runs[0].config, run.config) for run in runs):
            raise ValueError("the runs differ in more than scalars")
        self.mesh = mesh
        self._trials = NamedSharding(mesh, PartitionSpec(TRIAL))
        whole = NamedSharding(mesh, PartitionSpec())
        first = runs[0]

        def one(state: TrainState, values: dict[str, Any], batch: dict[str, jax.Array]):
            config = with_scalars(first.config, values)
            model = first.model.clone(config=config.model)
            return train_step(config, model, make_optimizer(config))(state, batch)

        self._runs = runs
        self._step = jax.jit(
            jax.vmap(one, in_axes=(0, 0, None), spmd_axis_name=TRIAL),
            donate_argnums=0,
            in_shardings=(self._trials, self._trials, whole),
            out_shardings=(self._trials, self._trials),
        )
        self._scalars = self.put([scalars(run.config) for run in runs])
        self._whole = whole
        self._programs: dict[tuple[int, ...], jax.stages.Compiled] = {}

    def compile(self, state: TrainState) -> None:
        """A program for each shape on the closed list, each weighed against the memory there is."""
        options, available = compiler_options(self._runs[0].config), memory.device_memory()
        for shape in sorted(self._runs[0].batches.shapes, key=lambda s: -s.length * s.rows):
            size = (shape.micro, shape.rows, shape.length)
            arrays = batch_struct(size, self._whole)
            with mesh_lib.use(self.mesh):
                self._programs[size] = self._step.lower(state, self._scalars, arrays).compile(options)
            advice = "Train fewer runs together, or lower config.data.microbatch_tokens."
            what = f"the train step of {len(self._runs)} runs for {shape}"
            memory.weigh(what, memory.program_bytes(self._programs[size]), available, advice)

    def put(self, trees: list[Any]) -> Any:
        """The trees of all runs with a trial axis, on the mesh."""
        stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *trees)
        return jax.device_put(stacked, self._trials)

    def step(self, state: TrainState, arrays: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
        """One update of every run; the state is donated. Metrics have the trial axis."""
        return self._programs[arrays["target"].shape](state, self._scalars, arrays)

    @staticmethod
    def of_run(state: TrainState, i: int, run: TrainingSetup) -> TrainState:
        """Run i's own state, where the run has it."""
        return jax.tree.map(lambda x, like: jax.device_put(np.asarray(x[i]), like.sharding), state, run.abstract)


@dataclasses.dataclass
class _Track:
    """What one of the runs needs beside its arrays."""

    run: TrainingSetup
    checkpoints: Any
    done: TrainProgress
    log: TrainLogger
    valid_loss: Any
    score: Callable[..., float] | None
    bar: Progress
    outcome: Outcome | None = None
    failure: NonFiniteUpdate | None = None

    @property
    def running(self) -> bool:
        return self.outcome is None and self.failure is None

    def seconds(self) -> dict[str, float]:
        """The run's own part of the time so far; see `_share_out`."""
        return {name: round(value, 3) for name, value in self.done.seconds.items()}

    @contextlib.contextmanager
    def failing_alone(self):
        """An update that is not finite ends this run, not the others."""
        try:
            yield
        except NonFiniteUpdate as error:
            self.failure = error


def train_together(
    runs: list[TrainingSetup],
    scores: list[Callable[..., float] | None],
    say: Callable[[str], None] = print,
    supervisor: RunSupervisor | None = None,
    ended: Callable[[TrainingSetup, Outcome], None] = lambda run, outcome: None,
) -> list[Outcome | NonFiniteUpdate]:
    """Trains runs that `share_a_program` from where all of them stand; see `loop.train` for `scores` and `watch`.

    Returns each run's outcome, or what went wrong with it alone. A run that its patience ends is finished, the others go
    on; `ended` is told of each run that is finished, as soon as its checkpoint is whole. Raises ValueError for runs that
    stand at different updates.
    """
    if supervisor is None:
        with RunSupervisor(ProcessGroup(), runs[0].config.distributed) as supervisor:
            return train_together(runs, scores, say, supervisor, ended)
    config, clock = runs[0].config, Clock({})
    with supervisor.exit_on_signal("restoring and compiling"):
        opened = [open_checkpoints(run) for run in runs]
        found = [restore_or_init(run, checkpoints, say) for run, checkpoints in zip(runs, opened, strict=True)]
        if len({done.step for _, done in found}) > 1:
            raise ValueError(f"the runs stand at different updates: {[done.step for _, done in found]}")
        stack, progressed = Stack(runs, trial_mesh(len(runs))), [done for _, done in found]
        state, start = stack.put([state for state, _ in found]), progressed[0].step
        del found  # the stack holds what they held
        with clock.measure("compile"):
            stack.compile(state)
            losses = [validation_loss(run) for run in runs]
            for i, run in enumerate(runs):
                compile_checksums(Stack.of_run(state, i, run))
        bars = [Progress("train", config.train.steps, start=start, quiet=bool(i)) for i in range(len(runs))]
        tracks = [
            _Track(run, checkpoints, done, TrainLogger(run, clock, done), valid_loss, score, bar)
            for run, checkpoints, done, valid_loss, score, bar in zip(
                runs, opened, progressed, losses, scores, bars, strict=True
            )
        ]
    look = functools.partial(_look, tracks, supervisor=supervisor, clock=clock, shared={}, ended=ended)
    with contextlib.ExitStack() as until_the_end:
        for track in tracks:
            until_the_end.enter_context(finish_saves_on_error(track.checkpoints))
            until_the_end.enter_context(track.bar)
        until_the_end.enter_context(supervisor.expect_progress())
        for i, track in enumerate(tracks):  # a run that was stopped after its last update, or in its last evaluation
            reason = finished_before(run=track.run, done=track.done)
            if reason:
                track.outcome = Outcome(Stack.of_run(state, i, track.run), start, reason, track.seconds())
                ended(track.run, track.outcome)
        if any(track.running and track.done.evaluation_due for track in tracks):
            look(state, start, due(runs[0], start), resumed=True)
        lengths, batches = runs[0].corpus.train.lengths, runs[0].batches
        feed = until_the_end.enter_context(Prefetcher(batches, stack.mesh, lengths, start, config.train.steps))
        behind = None
        for step in range(start + 1, config.train.steps + 1):
            if not any(track.running for track in tracks):
                break
            with clock.measure("data"):
                fed = feed.next()
            with clock.measure("step"):
                state, metrics = stack.step(state, fed.arrays)
            if behind:
                _note_update(tracks, *behind)
            behind = step, fed, metrics
            asked, now = supervisor.should_stop(), due(runs[0], step)
            if asked or now.evaluation or now.checkpoint or step == config.train.steps:
                _note_update(tracks, *behind)
                behind = None
                look(state, step, now, asked=asked)
    for track in tracks:
        track.log.close()
        with clock.measure("save"):
            on_disk(track.checkpoints, track.checkpoints.wait)
            track.checkpoints.close()
    return [track.outcome or track.failure for track in tracks]


def _note_update(tracks: list[_Track], step: int, fed, metrics) -> None:
    values = jax.device_get(metrics)
    for i, track in enumerate(tracks):
        if track.running:
            with track.failing_alone():
                track.log.took(step, fed, {name: value[i] for name, value in values.items()}, track.bar)


def _look(
    tracks: list[_Track], state: TrainState, step: int, now: Due, *, supervisor: RunSupervisor, clock: Clock,
    shared: dict[str, float], ended,
    asked=False, resumed=False,
) -> None:  # fmt: skip
    """What is due for the runs after an update: evaluations, checkpoints, ends. A stop in the middle of the evaluations
    is one for all, at this update. Where one run ends, the others are saved too before its last evaluation, in which the
    process may be ended. Of the runs' own states there is one at a time.
    """
    looked, found = [], {}
    for i, track in enumerate(tracks):
        with track.failing_alone():
            if track.running:
                track.log.flush(track.bar)
        if not track.running or resumed and not track.done.evaluation_due:
            continue
        looked.append(i)
        done, values = track.done, None
        if now.evaluation and not asked:
            own = Stack.of_run(state, i, track.run)
            try:
                with clock.measure("eval"):
                    values = evaluate(now, track.run.config, own, track.valid_loss, track.score, supervisor)
            except StopRequested:
                asked = True
        done.evaluation_due = now.evaluation and values is None
        if values:
            found[i] = note_metric(done, values, step, track.run.config.eval.metric)
            track.log.write(step, values)
    _share_out(tracks, clock, shared)
    reasons = {i: _reason(tracks[i], step, supervisor.signal if asked else "") for i in looked}
    finished = [i for i in looked if reasons[i] in ("patience", "steps")]
    for i in looked:
        track, run, done = tracks[i], tracks[i].run, tracks[i].done
        best = found.get(i) is not None and run.config.checkpoint.keep_best
        if not (reasons[i] or finished or now.checkpoint or best):
            continue
        own = Stack.of_run(state, i, run)
        with clock.measure("save"):
            done.step, done.scheduled = step, now.checkpoint or reasons[i] == "patience"
            save(run, track.checkpoints, own, done, found.get(i))
        if reasons[i]:
            track.outcome = Outcome(own, step, reasons[i], track.seconds())
    for track in tracks:
        if asked and track.running:  # it was not looked at: it stands where it was restored
            track.outcome = Outcome(
                Stack.of_run(state, tracks.index(track), track.run), step, supervisor.signal, track.seconds()
            )
        if finished:
            on_disk(track.checkpoints, track.checkpoints.wait)
    for i in finished:
        tracks[i].log.flush(tracks[i].bar)
        ended(tracks[i].run, tracks[i].outcome)


def _reason(track: _Track, step: int, signal: str) -> str:
    """Why a run ends at this update; empty where it goes on."""
    if patience_is_used_up(track.run, track.done):
        return "patience"
    return signal or ("steps" if step == track.run.config.train.steps else "")


def _share_out(tracks: list[_Track], clock: Clock, shared: dict[str, float]) -> None:
    """Adds to each run's seconds its part of those that have passed since the last time."""
    running = [track for track in tracks if track.running]
    for name, total in clock.seconds.items():
        for track in running:
            part = (total - shared.get(name, 0.0)) / len(running)
            track.done.seconds[name] = track.done.seconds.get(name, 0.0) + part
    shared.update(clock.seconds)
