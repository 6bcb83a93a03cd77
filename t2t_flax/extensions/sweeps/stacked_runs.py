"""Several runs that share every update, as one run of the training loop. `train_together` trains them; `sweep --stack`
starts it:

    python -m t2t_flax train_together --config=A.json --workdir=A --config=B.json --workdir=B ...
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from t2t_flax import config as config_lib
from t2t_flax import jobs
from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.config.schema import MESH_AXES
from t2t_flax.data.batching.batches import Shape
from t2t_flax.data.dataset import check_sources, prepare_corpus
from t2t_flax.distributed.supervisor import RunSupervisor, run_job
from t2t_flax.errors import DIVERGED, OK, STOPPED, NonFiniteUpdate, UserError
from t2t_flax.evaluation.evaluate import validation_score
from t2t_flax.extensions.sweeps.trials import NUMBERS, RATES, vectorization_conflict
from t2t_flax.models.dropout import Rate
from t2t_flax.process_setup import prepare_process
from t2t_flax.registry import HOOKS
from t2t_flax.tasks import task_of
from t2t_flax.training.hooks import Hook
from t2t_flax.training.loop import train_run
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.precision import compiler_options
from t2t_flax.training.progress import measure
from t2t_flax.training.run import DueAfterUpdate, Run, TrainingEnd, ValidationScore
from t2t_flax.training.setup import (
    DeviceBatch,
    Prefetcher,
    TrainingSetup,
    batch_struct,
    compile_programs,
    set_up_training,
)
from t2t_flax.training.train_state import TrainState
from t2t_flax.training.train_step import train_step
from t2t_flax.training.workdir import adopt_config, advice, check_config, check_run_folder, completed, mark, writing

TRIAL = "trial"
"""The axis of a mesh over which runs are divided."""


def run(argv: list[str]) -> int:
    """Exit code 0 when all runs are complete, 75 when stopped by a signal and saved, 3 when one has diverged."""
    parser = arguments.parser("train_together", "Trains runs that differ only in scalars with one train step.")
    parser.add_argument("--config", action="append", required=True, metavar="FILE.json")
    parser.add_argument("--workdir", action="append", required=True, metavar="DIR")
    args, overrides = arguments.parse(parser, argv)
    configs = [config_lib.load_config(path, overrides) for path in args.config]
    if len(configs) != len(args.workdir):
        raise UserError(f"{len(configs)} configs and {len(args.workdir)} workdirs: give one of each for each run.")
    for path, config in zip(args.config, configs, strict=True):
        if conflict := vectorization_conflict(configs[0], config):
            raise UserError(f"{args.config[0]} and {path} cannot be trained together: {conflict}")
    prepare_process(configs[0])
    runs = list(zip(configs, map(epath.Path, args.workdir), strict=True))
    with contextlib.ExitStack() as stack:
        for _, workdir in runs:
            check_run_folder(workdir)
            stack.enter_context(writing(workdir, "train_together"))
        return run_job(configs[0], lambda supervisor: _train(runs, supervisor))


def _train(runs: list[tuple[Config, epath.Path]], supervisor: RunSupervisor) -> int:
    say, setups = supervisor.group.say, []
    for config, workdir in runs:
        if completed(workdir, config):
            continue
        jobs.check_available(config, supervisor.group)
        config = jobs.with_precision(config, workdir, supervisor.group)
        if setups and (conflict := vectorization_conflict(setups[0].config, config)):
            raise UserError(f"{setups[0].workdir} and {workdir} cannot be trained together: {conflict}")
        with supervisor.exit_on_signal("preparing the data"):
            task = task_of(config)
            check_config(workdir, config)
            check_sources(task)
            adopt_config(workdir, config)
            corpus = prepare_corpus(task, workdir)
        device = jax.devices()[len(setups) % jax.device_count()]
        setups.append(set_up_training(config, workdir, corpus, devices=[device]))
    say(f"{len(setups)} runs together: {', '.join(str(run.workdir) for run in setups)}")
    if not setups:
        return OK

    def on_finish(run, end) -> None:
        with supervisor.exit_on_signal("evaluating at the end"):
            jobs.finish(run.config, run.workdir, end, supervisor)

    codes = []
    ends = train_stacked(setups, [validation_score(run, supervisor) for run in setups], supervisor, say, on_finish)
    for run, end in zip(setups, ends, strict=True):
        if isinstance(end, NonFiniteUpdate):
            mark(run.workdir, end)
            print(f"t2t_flax train: {run.workdir}: {end} {advice(run.config, run.workdir)}", file=sys.stderr)
            codes.append(DIVERGED)
        elif not end.finished:
            say(f"{run.workdir}: stopped by {end.reason} after update {end.step}, saved")
            codes.append(STOPPED)
    return max(codes, default=OK)


def train_stacked(
    setups: list[TrainingSetup],
    scores: list[ValidationScore | None],
    supervisor: RunSupervisor,
    say: Callable[[str], None] = print,
    on_finish: Callable[[TrainingSetup, TrainingEnd], None] = lambda setup, end: None,
) -> list[TrainingEnd | NonFiniteUpdate]:
    """Trains runs that are at the same update and `can_be_vectorized`. Patience or divergence ends one of them alone, a signal
    stops all at the same update. Returns each run's end, or how it diverged. `on_finish` is called for each finished run once
    all runs are saved. Raises UserError as `training.loop.train`.
    """
    if len(setups) == 1:  # those that trained with it are complete: with the program of a run by itself
        run = Run(setups[0], scores[0], supervisor)
        train_run(run, supervisor, say)
        if run.ended and run.ended.finished:
            on_finish(run.setup, run.ended)
        return [run.ended or run.failure]
    stack = StackedRuns(setups, scores, supervisor, on_finish)
    train_run(stack, supervisor, say)
    return [run.ended or run.failure for run in stack.runs]


class RunInStack(Run):
    """A run whose state is a part of the stack's."""

    own_state: Callable[[], TrainState]
    """Returns a copy of its part."""

    @property
    def state(self) -> TrainState:
        return self.own_state()

    @state.setter
    def state(self, state: TrainState) -> None:
        self.own_state = lambda: state


class StackedRuns:
    """Runs with one vectorized train step; has the interface of `training.run.Run`. Raises UserError for a hook that reads the
    state of a run before an update.
    """

    def __init__(
        self,
        setups: list[TrainingSetup],
        scores: list[ValidationScore | None],
        supervisor: RunSupervisor,
        on_finish: Callable[[TrainingSetup, TrainingEnd], None],
    ):
        self.runs = [RunInStack(*parts, supervisor) for parts in zip(setups, scores, strict=True)]
        for hook in self.runs[0].hooks:
            if type(hook).before_update is not Hook.before_update:
                keys = " or ".join(f"config.{key}" for key in HOOKS.get(type(hook).__module__, ()))
                raise UserError(
                    f"runs that set {keys} train one at a time: leave it at its default, or leave out --stack."
                )
        self.setup, self._on_finish = setups[0], on_finish
        self._to_evaluate: list[RunInStack] = []
        """The runs that the next evaluation is of: at the start those for which it is due, after an update all."""

    @property
    def running(self) -> list[RunInStack]:
        """Those that train on; like the flag of a run, true if there is one."""
        return [run for run in self.runs if run.running]

    @property
    def mesh(self) -> jax.sharding.Mesh:
        return trial_mesh(len(self.runs))

    @property
    def evaluation_due(self) -> bool:
        return any(run.evaluation_due for run in self.runs)

    def restore(self, say: Callable[[str], None]) -> int:
        """Raises UserError where the runs are not at the same update."""
        steps = {run.restore(say) for run in self.runs}
        if len(steps) > 1:
            places = ", ".join(f"{run.setup.workdir} at {run.progress.step}" for run in self.runs)
            raise UserError(
                f"runs that train together must be at the same update, but they are at different updates: {places}. Train "
                "those that are behind by themselves first."
            )
        return steps.pop()

    def compile(self) -> None:
        with split_time("compile", self.runs):
            self._program = VectorizedProgram([run.setup for run in self.runs], self.runs[0].hooks)
            self._state = self._program.join([run.state for run in self.runs])
            for i, run in enumerate(self.runs):
                run.own_state = lambda i=i: self._program.state_of(self._state, i)
                run.compile_besides_updates()

    def open_logs(self) -> None:
        """Shows the progress bar of the first run."""
        for run in self.runs:
            run.open_logs(quiet=run is not self.runs[0])
        self._unread: tuple[int, DeviceBatch, dict[str, jax.Array]] | None = None

    @contextlib.contextmanager
    def finish_saves_on_error(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for run in self.runs:
                stack.enter_context(run.finish_saves_on_error())
            yield

    def end_if_complete(self) -> None:
        for run in self.runs:
            run.end_if_complete()
            self._report_if_finished(run)
        self._to_evaluate = [run for run in self.runs if run.evaluation_due]

    def update(self, step: int, batches: Prefetcher) -> None:
        running = self._to_evaluate = self.running
        with split_time("data", running):
            batch = batches.next()
        with self._device_time("step", running), jax.transfer_guard("disallow"):
            self._state, values = self._program(self._state, batch.arrays)
        self.read_metrics()
        self._unread = step, batch, values

    def read_metrics(self) -> None:
        if not self._unread:
            return
        (step, batch, metrics), self._unread = self._unread, None
        with self._device_time("step", self.running):
            values = jax.device_get(metrics)
        for i, run in enumerate(self.runs):
            running = run.running
            run.log_update(step, batch, {name: float(value[i]) for name, value in values.items()})
            if running and run.failure:  # the others may train for hours
                mark(run.setup.workdir, run.failure)

    def _device_time(self, bucket: str, runs: Sequence[Run]) -> contextlib.AbstractContextManager[None]:
        """`split_time` of all devices; simulated ones share the cores and count as one. A run by itself has one device."""
        return split_time(bucket, runs, 1 if jax.default_backend() == "cpu" else self.mesh.size)

    def expect_evaluation(self, due: DueAfterUpdate) -> None:
        self._to_evaluate = [run for run in self._to_evaluate if run.running]
        for run in self._to_evaluate:
            run.expect_evaluation(due)

    def evaluate(self, step: int, due: DueAfterUpdate) -> None:
        for run in self._to_evaluate:
            run.evaluate(step, due)

    def save(self, step: int, *, required: bool) -> None:
        for run in self._to_evaluate:
            run.save(step, required=required)

    def check_saves(self) -> None:
        for run in self.running:
            run.check_saves()

    def wait_for_saves(self) -> None:
        """All of them: the process may be killed during the final evaluation of one."""
        for run in self.running:
            run.wait_for_saves()

    def reason_to_end(self, step: int, signal: str) -> str:
        """Of any run."""
        return next(filter(None, (run.reason_to_end(step, signal) for run in self.running)), "")

    def end(self, step: int, signal: str) -> None:
        """Ends the runs that have a reason to."""
        for run in self.running:
            if run.reason_to_end(step, signal):
                run.end(step, signal)
                self._report_if_finished(run)

    def _report_if_finished(self, run: RunInStack) -> None:
        """The final evaluation, and the training of the others, need the memory of its copy of the state."""
        run.ended = run.ended and dataclasses.replace(run.ended, state=None)
        if run.ended and run.ended.finished:
            self._on_finish(run.setup, run.ended)

    def close(self) -> None:
        for run in self.runs:
            run.close()
        del self._state


def split_time(bucket: str, runs: Sequence[Run], devices: int = 1) -> contextlib.AbstractContextManager[None]:
    """Adds the time that the block takes so many devices to a bucket of all `runs` for which the work is done, in equal parts."""
    return measure(bucket, *(run.progress.seconds for run in runs), devices=devices)


class VectorizedProgram:
    """One train step of several runs, each of which has its own scalars; the batch is the same for all. States and metrics
    have a first axis of runs.
    """

    def __init__(self, runs: list[TrainingSetup], hooks: Sequence[Hook] = ()):
        if conflict := next(filter(None, (vectorization_conflict(runs[0].config, run.config) for run in runs)), ""):
            raise ValueError(f"the runs cannot be vectorized: {conflict}")
        self.mesh, self._runs, config = trial_mesh(len(runs)), runs, runs[0].config
        self._trials = NamedSharding(self.mesh, PartitionSpec(TRIAL))
        replicated = NamedSharding(self.mesh, PartitionSpec())

        def step_of_one(state: TrainState, values: dict[str, Any], batch: dict[str, jax.Array]):
            own = config.with_values(values)  # traced
            model = runs[0].model.clone(config=own.model)
            return train_step(own, model, make_optimizer(own), hooks=hooks)(state, batch)

        step = jax.jit(
            jax.vmap(step_of_one, in_axes=(0, 0, None), spmd_axis_name=TRIAL),
            donate_argnums=0,
            in_shardings=(self._trials, self._trials, replicated),
            out_shardings=(self._trials, self._trials),
        )
        self._scalars = self._stack([scalars(run.config) for run in runs])
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((len(runs), *x.shape), x.dtype, sharding=self._trials), runs[0].abstract
        )

        def describe(shape: Shape) -> tuple[str, str]:
            advice = "Train fewer runs together, or lower config.data.microbatch_tokens."
            return f"the train step of {len(runs)} runs for {shape}", advice

        def lower(shape: Shape) -> jax.stages.Lowered:
            struct = batch_struct(shape.array_shape, replicated)
            return step.lower(abstract, self._scalars, struct)

        options = compiler_options(config)
        self._programs = compile_programs(runs[0].batches.shapes, lower, describe, self.mesh, options=options)

    def __call__(self, state: TrainState, arrays: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
        """One update of every run. The state is donated."""
        return self._programs[arrays["target"].shape](state, self._scalars, arrays)

    def join(self, states: list[TrainState]) -> TrainState:
        """The runs' own states as one; a copy."""
        return self._stack(states)

    def state_of(self, state: TrainState, i: int) -> TrainState:
        """Run i's own state where the run has it; a copy."""
        own = self._runs[i].abstract
        return jax.tree.map(lambda x, like: jax.device_put(np.asarray(x[i]), like.sharding), state, own)

    def _stack(self, trees: list[Any]) -> Any:
        stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *trees)
        return jax.device_put(stacked, self._trials)


def trial_mesh(count: int, devices: list | None = None) -> jax.sharding.Mesh:
    """A mesh whose first axis divides `count` runs over as many devices as divide them evenly; its other axes are 1."""
    devices = jax.devices() if devices is None else devices
    size = max(n for n in range(1, min(count, len(devices)) + 1) if count % n == 0)
    grid = np.array(devices[:size]).reshape(size, *(1 for _ in MESH_AXES))
    return jax.sharding.Mesh(grid, (TRIAL, *MESH_AXES), axis_types=(AxisType.Auto,) * (1 + len(MESH_AXES)))


def scalars(config: Config) -> dict[str, Any]:
    """The config's scalars as arrays: Rate for dropout, uint32 for the seed, float32 for the rest."""
    out: dict[str, Any] = {key: np.float32(config.value(key)) for key in NUMBERS}
    for key in RATES:
        value = config.value(key)
        out[key] = Rate.of(config.model.dropout if value is None else value)
    out["seed.dropout"] = np.uint32(config.seed.dropout % 2**32)
    return out
