"""Runs that differ in scalars, trained together: each is what it is alone."""

import dataclasses
import time

import jax
import numpy as np
import pytest
from etils import epath
from helpers.runs import tiny_run

from t2t_flax.config.scalars import share_a_program
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor, StopRequested
from t2t_flax.filesystem import list_numbers
from t2t_flax.monitoring.metrics_writer import read_metrics
from t2t_flax.training import loop
from t2t_flax.training.divergence import NonFiniteUpdate
from t2t_flax.training.setup import set_up_training
from t2t_flax.training.train_state import init_state
from t2t_flax.training.vectorized import Stack, train_together, trial_mesh
from t2t_flax.training.workdir import adopt_config

VARIANTS = [
    dict(model=dict(dropout=0.0), loss=dict(label_smoothing=0.0)),
    dict(model=dict(dropout=0.3), seed=dict(init=1, dropout=7)),
    dict(model=dict(dropout=0.1, dropout_embed=0.2), optimizer=dict(lr_scale=2.0, warmup_steps=5)),
    dict(loss=dict(label_smoothing=0.2), seed=dict(dropout=3)),
]


def runs_of(tmp_path, cache, name, variants=VARIANTS, steps=12, devices=None, **groups):
    """A run for each variant, each on a device of its own.

    Adam's eps is far above rounding: with 1e-9, a unit whose gradient is nearly zero takes steps of a random sign, and two
    programs that round differently end at different parameters.
    """
    devices = devices or jax.devices()
    groups["optimizer"] = dict(eps=1e-4) | groups.get("optimizer", {})
    runs = []
    for i, variant in enumerate(variants):
        keys = {g: groups.get(g, {}) | variant.get(g, {}) for g in groups.keys() | variant.keys()}
        config = tiny_run(tmp_path, steps=steps, **keys)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache=str(cache)))
        workdir = epath.Path(tmp_path / name / str(i))
        adopt_config(workdir, config)
        runs.append(
            set_up_training(config, workdir, prepare_corpus(config, workdir), devices=[devices[i % len(devices)]])
        )
    return runs


def losses(run):
    return np.array([line["loss"] for line in read_metrics(run.workdir) if "loss" in line])


@pytest.mark.parametrize(
    "devices", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_together_is_as_alone(tmp_path, cache, devices, monkeypatch):
    """Dropout, accumulation, rates, smoothing and seeds of its own: losses to 1e-5 relative, parameters to 2e-5."""
    monkeypatch.setattr("t2t_flax.training.vectorized.jax.devices", lambda: _DEVICES[:devices])
    evaluated = dict(eval=dict(every_steps=4), optimizer=dict(ema_decay=0.9))
    alone = runs_of(tmp_path, cache, "alone", devices=_DEVICES[:1], **evaluated)
    together = runs_of(tmp_path, cache, "together", devices=_DEVICES[:devices], **evaluated)
    outcomes = [loop.train(run, score=None) for run in alone]
    stacked = train_together(together, [None] * 4, say=lambda _: None)
    assert trial_mesh(4).shape["trial"] == devices
    for a, b, x, y in zip(alone, together, outcomes, stacked, strict=True):
        np.testing.assert_allclose(losses(b), losses(a), rtol=1e-5)
        valid = [[line["valid_nll"] for line in read_metrics(run.workdir) if "valid_nll" in line] for run in (a, b)]
        assert len(valid[0]) == 3
        np.testing.assert_allclose(valid[1], valid[0], rtol=1e-5)
        for one, other in zip(jax.tree.leaves(x.state.ema), jax.tree.leaves(y.state.ema), strict=True):
            np.testing.assert_allclose(np.asarray(other), np.asarray(one), atol=2e-5)
    assert len({tuple(losses(run)) for run in together}) == 4


_DEVICES = jax.devices()


def test_a_stack_resumes_and_a_run_of_it_goes_on_alone(tmp_path, cache):
    whole = runs_of(tmp_path, cache, "whole", VARIANTS[:2])
    train_together(whole, [None] * 2, say=lambda _: None)
    half = runs_of(tmp_path, cache, "half", VARIANTS[:2], steps=8)
    train_together(half, [None] * 2, say=lambda _: None)
    said = []
    train_together(runs_of(tmp_path, cache, "half", VARIANTS[:2], steps=12)[:1], [None], say=said.append)
    loop.train(runs_of(tmp_path, cache, "half", VARIANTS[:2], steps=12)[1], score=None, say=said.append)
    assert ["after update 8" in text for text in said if "resuming" in text] == [True, True]
    for one, other in zip(whole, half, strict=True):
        np.testing.assert_allclose(losses(other), losses(one), rtol=1e-5)


def test_one_that_diverges_or_runs_out_of_patience_leaves_the_others(tmp_path, cache):
    wild = dict(optimizer=dict(lr_scale=1e30))
    hopeless = dict(optimizer=dict(lr_scale=1e-9))
    runs = runs_of(
        tmp_path,
        cache,
        "w",
        [VARIANTS[0], wild, hopeless],
        eval=dict(every_steps=2, patience=2, metric="loss"),
        steps=12,
    )
    fine, broken, stopped = train_together(runs, [None] * 3, say=lambda _: None)
    assert isinstance(broken, NonFiniteUpdate) and "loss nan" in str(broken)
    assert fine.reason == "steps" and fine.step == 12 and len(losses(runs[0])) == 12
    assert stopped.reason in ("patience", "steps")
    alone = runs_of(tmp_path, cache, "a", VARIANTS[:1], eval=dict(every_steps=2, patience=2, metric="loss"))
    loop.train(alone[0], score=None)
    np.testing.assert_allclose(losses(runs[0]), losses(alone[0]), rtol=1e-5)


def test_nothing_compiles_after_the_first_update_of_a_stack(tmp_path, cache, monkeypatch):
    """Its runs' own states, evaluations and saves included."""
    compiled, warm, real = [], [], Stack.step
    monkeypatch.setattr(Stack, "step", lambda *args: (real(*args), warm.append(True))[0])

    def listener(event, duration, **kw):
        if event == "/jax/core/compile/backend_compile_duration" and warm:
            compiled.append(kw)

    runs = runs_of(
        tmp_path, cache, "c", VARIANTS[:2], steps=6, eval=dict(every_steps=3), checkpoint=dict(every_steps=2)
    )
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        train_together(runs, [None] * 2, say=lambda _: None)
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert len(warm) == 6 and compiled == []


def test_what_may_differ(tmp_path):
    base = tiny_run(tmp_path)
    assert all(share_a_program(base, tiny_run(tmp_path, **variant)) for variant in VARIANTS)
    for other in (
        dict(model=dict(d_ff=48)),
        dict(seed=dict(data=1)),
        dict(optimizer=dict(b2=0.9)),
        dict(train=dict(steps=13)),
    ):
        assert not share_a_program(base, tiny_run(tmp_path, **({"steps": 13} if "train" in other else other)))


def test_runs_at_different_updates_or_of_other_programs_are_refused(tmp_path, cache):
    runs = runs_of(tmp_path, cache, "d", VARIANTS[:2], steps=4)
    train_together(runs[:1], [None], say=lambda _: None)
    with pytest.raises(ValueError, match="different updates"):
        train_together(runs, [None] * 2, say=lambda _: None)
    other = runs_of(tmp_path, cache, "o", [dict(model=dict(d_ff=48))])
    with pytest.raises(ValueError, match="more than scalars"):
        Stack([*runs, *other], trial_mesh(3))


def test_a_stack_that_was_stopped_after_its_last_update_is_finished(tmp_path, cache):
    """Everything was saved, nothing said complete: the next start has nothing to train, and says so of each."""
    runs = runs_of(tmp_path, cache, "e", VARIANTS[:2], steps=4)
    train_together(runs, [None] * 2, say=lambda _: None)
    told = []
    again = train_together(
        runs, [None] * 2, say=lambda _: None, ended=lambda run, outcome: told.append(run.workdir.name)
    )
    assert [outcome.reason for outcome in again] == ["steps", "steps"] and told == ["0", "1"]
    assert all(outcome.step == 4 for outcome in again)


def test_all_are_saved_before_the_last_evaluation_of_one(tmp_path, cache):
    """It may take long, and the process may be ended in it."""

    def ended(run, outcome):
        raise KeyboardInterrupt

    runs = runs_of(tmp_path, cache, "s", VARIANTS[:2], steps=6, checkpoint=dict(every_steps=100))
    with pytest.raises(KeyboardInterrupt):
        train_together(runs, [None, None], say=lambda text: None, ended=ended)
    assert [list_numbers(run.workdir / "checkpoints") for run in runs] == [[6], [6]]


def test_the_time_is_shared_out(tmp_path, cache):
    runs = runs_of(tmp_path, cache, "t", VARIANTS[:2], steps=6)
    clock = []
    began = time.perf_counter()
    outcomes = train_together(runs, [None, None], say=clock.append)
    passed = time.perf_counter() - began
    told = [sum(outcome.seconds.values()) for outcome in outcomes]
    assert told[0] == pytest.approx(told[1]) and 0 < sum(told) <= passed


def test_used_up_patience_is_remembered(tmp_path, cache):
    """A run that its patience has ended does not train on when it is started again before anybody said complete."""
    hopeless = [dict(optimizer=dict(lr_scale=1e-9)), dict(optimizer=dict(lr_scale=1e-9), seed=dict(dropout=1))]
    groups = dict(eval=dict(every_steps=2, patience=1, metric="loss"), model=dict(dropout=0.0))
    runs = runs_of(tmp_path, cache, "p", hopeless, **groups)
    first = train_together(runs, [None] * 2, say=lambda _: None)
    assert [outcome.reason for outcome in first] == ["patience"] * 2
    again = train_together(runs, [None] * 2, say=lambda _: None)
    assert [(outcome.reason, outcome.step) for outcome in again] == [
        (outcome.reason, outcome.step) for outcome in first
    ]
    alone = loop.train(runs_of(tmp_path, cache, "p", hopeless, **groups)[0], score=None)
    assert (alone.reason, alone.step) == (first[0].reason, first[0].step)


def test_a_stop_in_the_middle_of_the_evaluations_leaves_all_at_the_same_update(tmp_path, cache):
    """The first run was evaluated, the second not: both are saved there, and the second begins with it."""

    class Stopping(RunSupervisor):
        """Asks for a stop after so many batches of evaluations."""

        calls, allowed = 0, 0

        def raise_if_stopping(self):
            self.calls += 1
            if self.calls > self.allowed:
                self.signal = "SIGTERM"
                raise StopRequested

    groups = dict(eval=dict(every_steps=4))
    whole = runs_of(tmp_path, cache, "whole", VARIANTS[:2], **groups)
    train_together(whole, [None] * 2, say=lambda _: None)
    runs = runs_of(tmp_path, cache, "cut", VARIANTS[:2], **groups)
    counted = []
    loss = loop.validation_loss(runs[0])
    loss(init(runs[0]), lambda: counted.append(1))
    for allowed in (len(counted), 0):  # then in what is made up at the start
        with Stopping(ProcessGroup(), runs[0].config.distributed) as supervisor:
            supervisor.allowed = allowed
            outcomes = train_together(runs, [None] * 2, say=lambda _: None, supervisor=supervisor)
        assert supervisor.calls == allowed + 1
        assert [(outcome.step, outcome.finished) for outcome in outcomes] == [(4, False)] * 2
    outcomes = train_together(runs, [None] * 2, say=lambda _: None)
    assert [outcome.reason for outcome in outcomes] == ["steps"] * 2
    for one, other in zip(whole, runs, strict=True):
        np.testing.assert_allclose(losses(other), losses(one), rtol=1e-5)
        valid = [
            [(line["step"], line["valid_nll"]) for line in read_metrics(run.workdir) if "valid_nll" in line]
            for run in (one, other)
        ]
        assert [step for step, _ in valid[1]] == [4, 8, 12]
        np.testing.assert_allclose([v for _, v in valid[1]], [v for _, v in valid[0]], rtol=1e-5)


def init(run):
    return init_state(run.config, run.model, run.tx, run.mesh)[0].eval_params
