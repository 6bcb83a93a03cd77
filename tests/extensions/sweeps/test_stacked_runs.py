"""Runs that differ in scalars train in one vectorized step, each as it would alone."""

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from etils import epath
from helpers.runs import tiny_run

from t2t_flax import config as config_lib
from t2t_flax import jobs
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor, StopRequested
from t2t_flax.errors import NonFiniteUpdate, UserError
from t2t_flax.extensions.sweeps import stacked_runs
from t2t_flax.extensions.sweeps.stacked_runs import (
    VectorizedProgram,
    split_time,
    train_stacked,
    trial_mesh,
)
from t2t_flax.extensions.sweeps.trials import can_be_vectorized
from t2t_flax.filesystem import list_numbers
from t2t_flax.registry import HOOKS
from t2t_flax.tasks import task_of
from t2t_flax.training import loop
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.hooks import Hook
from t2t_flax.training.progress import read_metrics
from t2t_flax.training.setup import set_up_training, validation_loss
from t2t_flax.training.train_state import TrainProgress, init_state
from t2t_flax.training.workdir import MARKER, adopt_config

VARIANTS = [
    dict(model=dict(dropout=0.0), loss=dict(label_smoothing=0.0)),
    dict(model=dict(dropout=0.3), seed=dict(init=1, dropout=7)),
    dict(model=dict(dropout=0.1, dropout_ffn=0.2), optimizer=dict(lr_scale=2.0, warmup_steps=5)),
    dict(loss=dict(label_smoothing=0.2), seed=dict(init=2, dropout=3)),
]
DEVICES = jax.devices()


def runs_of(tmp_path, cache, name, variants=VARIANTS, steps=12, devices=None, **groups):
    """A run for each variant, each on its own device.

    Adam's eps is far above rounding: with 1e-9, a unit whose gradient is nearly zero takes steps of a random sign, and two
    programs that round differently end at different parameters.
    """
    devices = devices or DEVICES
    groups["optimizer"] = dict(eps=1e-4) | groups.get("optimizer", {})
    runs = []
    for i, variant in enumerate(variants):
        keys = {g: groups.get(g, {}) | variant.get(g, {}) for g in groups.keys() | variant.keys()}
        config = tiny_run(tmp_path, steps=steps, **keys)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache=str(cache)))
        workdir = epath.Path(tmp_path / name / str(i))
        adopt_config(workdir, config)
        corpus, device = prepare_corpus(task_of(config), workdir), devices[i % len(devices)]
        runs.append(set_up_training(config, workdir, corpus, devices=[device]))
    return runs


def train_runs(runs, supervisor=None, say=lambda _: None, **keys):
    if supervisor is None:
        with RunSupervisor(ProcessGroup(), runs[0].config) as supervisor:
            return train_runs(runs, supervisor, say, **keys)
    return train_stacked(runs, [None] * len(runs), supervisor, say, **keys)


def losses(run):
    return np.array([line["loss"] for line in read_metrics(run.workdir) if "loss" in line])


def evaluations(run):
    return {line["step"]: line["valid_nll"] for line in read_metrics(run.workdir) if "valid_nll" in line}


def assert_same_training(runs, expected):
    for one, other in zip(runs, expected, strict=True):
        np.testing.assert_allclose(losses(one), losses(other), rtol=1e-5)
        assert evaluations(one).keys() == evaluations(other).keys()
        np.testing.assert_allclose(list(evaluations(one).values()), list(evaluations(other).values()), rtol=1e-5)


@pytest.mark.parametrize("devices, count", [(2, 2), *(pytest.param(n, 4, marks=pytest.mark.drill) for n in (1, 2, 4))])
@pytest.mark.slow
def test_stacked_runs_equal_separate_runs(tmp_path, cache, devices, count, monkeypatch):
    """Each with its own dropout, accumulation, rates, smoothing and seeds, stopped once and resumed: losses to 1e-5 relative,
    parameters to 2e-5.
    """
    monkeypatch.setattr("t2t_flax.extensions.sweeps.stacked_runs.jax.devices", lambda: DEVICES[:devices])
    groups = dict(eval=dict(every_steps=3), optimizer=dict(ema_decay=0.9))
    separate = runs_of(tmp_path, cache, "alone", VARIANTS[-count:], devices=DEVICES[:1], steps=6, **groups)
    expected = [loop.train(run, score=None) for run in separate]
    assert trial_mesh(count).shape["trial"] == devices
    options = dict(variants=VARIANTS[-count:], devices=DEVICES[:devices], **groups)
    train_runs(runs_of(tmp_path, cache, "together", steps=3, **options))
    together, messages = runs_of(tmp_path, cache, "together", steps=6, **options), []
    outcomes = train_runs(together, say=messages.append)
    assert ["after update 3" in text for text in messages if "resuming" in text] == [True] * count
    assert_same_training(together, separate)
    assert all(list(evaluations(run)) == [3, 6] for run in together)
    assert [outcome.state for outcome in outcomes] == [None] * count, "a copy of the state of each run is kept"
    for run, other in zip(together, expected, strict=True):
        state, _ = Checkpoints(run.workdir / "checkpoints").restore_latest(run.abstract, run.config)
        for x, y in zip(jax.tree.leaves(state.ema), jax.tree.leaves(other.state.ema), strict=True):
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), atol=2e-5)
    assert len({tuple(losses(run)) for run in together}) == count


@pytest.mark.drill
@pytest.mark.slow
def test_stacked_runs_resume_in_another_stack_or_alone(tmp_path, cache):
    undisturbed = runs_of(tmp_path, cache, "whole", VARIANTS[:3])
    train_runs(undisturbed)
    train_runs(runs_of(tmp_path, cache, "half", VARIANTS[:3], steps=8))
    resumed = runs_of(tmp_path, cache, "half", VARIANTS[:3])
    train_runs(resumed[:2])
    with pytest.raises(UserError, match="at different updates: .* at 12, .* at 8"):
        train_runs(resumed)
    loop.train(resumed[2], score=None)
    assert_same_training(resumed, undisturbed)


@pytest.mark.slow
def test_divergence_and_patience_end_one_run_alone(tmp_path, cache):
    variants = [VARIANTS[0], dict(optimizer=dict(lr_scale=1e30)), dict(optimizer=dict(lr_scale=1e-9))]
    groups = dict(eval=dict(every_steps=2, patience=2, metric="loss"))
    runs = runs_of(tmp_path, cache, "runs", variants, steps=8, **groups)
    fine, diverged, stopped = train_runs(runs)
    assert isinstance(diverged, NonFiniteUpdate) and "loss nan" in str(diverged)
    assert [(run.workdir / MARKER).exists() for run in runs] == [False, True, False], "known while the others train"
    assert list_numbers(runs[1].workdir / "checkpoints") == []
    assert (fine.reason, fine.step, len(losses(runs[0]))) == ("steps", 8, 8)
    assert stopped.reason in ("patience", "steps")
    assert np.isfinite(losses(runs[0])).all() and losses(runs[0])[-1] < losses(runs[0])[0]


class StoppingSupervisor(RunSupervisor):
    """Requests a stop after `allowed` batches of evaluations."""

    calls, allowed = 0, 0

    def raise_if_stopping(self):
        self.calls += 1
        if self.calls > self.allowed:
            self.request_stop("SIGTERM")
            raise StopRequested


@pytest.mark.drill
@pytest.mark.slow
def test_stop_between_two_evaluations_leaves_all_runs_at_one_update(tmp_path, cache):
    """The first run was evaluated, the second not: both are saved there, and the second is evaluated when it resumes,
    alone or together.
    """
    groups = dict(eval=dict(every_steps=4))
    undisturbed = runs_of(tmp_path, cache, "whole", VARIANTS[:2], **groups)
    train_runs(undisturbed)
    runs = runs_of(tmp_path, cache, "cut", VARIANTS[:2], **groups)
    batches = []
    params = init_state(runs[0].config, runs[0].model, runs[0].tx, runs[0].mesh)[0].eval_params
    validation_loss(runs[0])(params, lambda: batches.append(1))
    for allowed in (len(batches), 0):  # then in the evaluation at the start of the resumed run
        with StoppingSupervisor(ProcessGroup(), runs[0].config) as supervisor:
            supervisor.allowed = allowed
            outcomes = train_runs(runs, supervisor=supervisor)
        assert supervisor.calls == allowed + 1
        assert [(outcome.step, outcome.finished) for outcome in outcomes] == [(4, False)] * 2
        assert [list(evaluations(run)) for run in runs] == [[4], []]
    assert loop.train(runs[1], score=None, say=lambda _: None).reason == "steps"
    assert train_runs(runs[:1])[0].reason == "steps"
    assert_same_training(runs, undisturbed)


@pytest.mark.slow
def test_end_of_a_stack(tmp_path, cache, monkeypatch):
    """All runs are saved before the first final evaluation, which may take long and be killed; when restarted they finish
    without an update. Nothing compiles after the first update, and the time of shared work is split evenly.
    """
    compiled, updates, finished, real = [], [], [], VectorizedProgram.__call__
    monkeypatch.setattr(VectorizedProgram, "__call__", lambda *args: (real(*args), updates.append(True))[0])

    def listener(event, duration, **kw):
        if event == "/jax/core/compile/backend_compile_duration" and updates:
            compiled.append(kw)

    def killed(run, outcome):
        raise KeyboardInterrupt

    hopeless = [dict(optimizer=dict(lr_scale=1e-9)), dict(optimizer=dict(lr_scale=1e-9), seed=dict(dropout=1))]
    groups = dict(eval=dict(every_steps=2, patience=1, metric="loss"), model=dict(dropout=0.0))
    runs = runs_of(tmp_path, cache, "runs", hopeless, **groups)
    start = time.perf_counter()
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        with pytest.raises(KeyboardInterrupt):
            train_runs(runs, on_finish=killed)
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    step = len(updates)
    assert 2 < step <= 12 and compiled == []
    assert [max(list_numbers(run.workdir / "checkpoints")) for run in runs] == [step, step]
    outcomes = train_runs(runs, on_finish=lambda run, outcome: finished.append(run.workdir.name))
    elapsed = time.perf_counter() - start
    assert [(outcome.reason, outcome.step) for outcome in outcomes] == [("patience", step)] * 2
    assert finished == ["0", "1"] and len(updates) == step
    first, second = (outcome.seconds for outcome in outcomes)
    for bucket in ("compile", "data", "step"):
        assert first[bucket] == pytest.approx(second[bucket], abs=0.003)
    assert 0 < sum(first.values()) + sum(second.values()) <= elapsed


def test_only_scalars_may_differ(tmp_path, cache):
    base = tiny_run(tmp_path)
    with pytest.raises(ValueError, match="more than scalars: model.d_ff"):
        VectorizedProgram(runs_of(tmp_path, cache, "runs", [{}, dict(model=dict(d_ff=48))]))
    assert all(can_be_vectorized(base, tiny_run(tmp_path, **variant)) for variant in VARIANTS)
    for keys in (dict(model=dict(d_ff=48)), dict(seed=dict(data=1)), dict(optimizer=dict(b2=0.9)), dict(steps=13)):
        assert not can_be_vectorized(base, tiny_run(tmp_path, **keys))


def test_runs_that_began_in_other_precisions_are_refused(tmp_path, cache, monkeypatch):
    """train.precision = auto is what it was on the device of the first start."""
    first, second = (tmp_path / name for name in ("first", "second"))
    keys = dict(data=dict(cache=str(cache), test=""))
    files = []
    for workdir in (first, second):
        files.append(str(tmp_path / f"{workdir.name}.json"))
        Path(files[-1]).write_text(config_lib.to_json(tiny_run(workdir, **keys)))
    begun_in = {first: "float32", second: "bfloat16"}
    stored = lambda config, workdir, group: config.with_values({"train.precision": begun_in[Path(workdir)]})  # noqa: E731
    monkeypatch.setattr(jobs, "with_precision", stored)
    flags = [f"--config={path}" for path in files] + [f"--workdir={path}" for path in (first, second)]
    with pytest.raises(UserError, match=r"first and .*second cannot be trained together: .*train\.precision"):
        stacked_runs.run(flags)


def test_a_hook_that_reads_the_state_of_a_run_is_refused(tmp_path, cache, monkeypatch):
    class Reader(Hook):
        def before_update(self, step, state, batch):
            pass

    monkeypatch.setattr("t2t_flax.training.run.make_hooks", lambda *_: [Reader()])
    monkeypatch.setitem(HOOKS, __name__, ("group.key",))
    with pytest.raises(UserError, match="runs that set config.group.key train one at a time"):
        train_runs(runs_of(tmp_path, cache, "runs", VARIANTS[:2]))


def test_time_of_several_devices_counts_for_each():
    runs = [SimpleNamespace(progress=TrainProgress()) for _ in range(2)]
    with split_time("step", runs, devices=4):
        time.sleep(0.02)
    assert [0.04 <= run.progress.seconds["step"] < 1.0 for run in runs] == [True, True]


def test_time_of_shared_work_is_split_evenly():
    runs = [SimpleNamespace(progress=TrainProgress(seconds={"step": start})) for start in (1.0, 2.0)]
    with split_time("step", runs):
        time.sleep(0.02)
    first, second = (run.progress.seconds["step"] - start for run, start in zip(runs, (1.0, 2.0), strict=True))
    assert 0.01 <= first < 1.0 and first == pytest.approx(second, abs=1e-3)
