"""Hooks are called at the moments of a run, in every process."""

import dataclasses

import jax
import pytest
from helpers.refusals import refused
from helpers.runs import start, tiny_run

from t2t_flax.errors import NonFiniteUpdate, UserError
from t2t_flax.training import hooks, loop
from t2t_flax.training.progress import read_metrics


class Recorder:
    def __init__(self):
        self.calls = []

    def hooks(self, setup, progress, group):
        self.calls.append(("start", progress.step))
        functions = {"before": self.before, "update": self.update, "log": self.log, "end": self.end}
        return [hooks.Hook(moment, function) for moment, function in functions.items()] + [
            hooks.Hook("update", lambda step, *_: self.calls.append(("third", step)), every=3)
        ]

    def before(self, step, state, batch):
        assert jax.device_get(state.step) == step - 1
        self.calls.append(("before", step))

    def update(self, step, batch, values):
        self.calls.append(("update", step))
        values["counted"] = step

    def log(self, step, values):
        self.calls.append(("log", step))

    def end(self, step, scores):
        self.calls.append(("end", step, scores))


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setattr(loop, "make_hooks", lambda *parts: made.hooks(*parts))
    return made


def test_moments_of_a_run(tmp_path, cache, recorder):
    """A finished run awaits the scores of its final evaluation."""
    keys = dict(eval=dict(every_steps=4), log=dict(every_steps=2))
    outcome = loop.train(start(tiny_run(tmp_path, steps=5, **keys), tmp_path, cache), score=None)
    names = "start0 before1 update1 before2 before3 update2 log2 before4 update3 third3 update4 log4 log4 before5 update5"
    assert [f"{name}{step}" for name, step in recorder.calls] == names.split()
    assert len(outcome.hooks) == 5
    assert [line.get("counted") for line in read_metrics(tmp_path)] == [2, 4, None]


def test_a_hook_that_refuses_a_run_leaves_it_as_it_was(tmp_path, cache, recorder, monkeypatch):
    def refuse(setup, progress, group):
        raise UserError("unfit")

    loop.train(start(tiny_run(tmp_path, steps=4), tmp_path, cache), score=None)
    (tmp_path / "complete.json").write_text("{}")
    before = (tmp_path / "config.json").read_text()
    monkeypatch.setattr(recorder, "hooks", refuse)
    with refused("unfit"):
        loop.train(start(tiny_run(tmp_path, steps=8), tmp_path, cache), score=None)
    assert (tmp_path / "complete.json").exists() and (
        tmp_path / "config.json"
    ).read_text() == before


def test_diverged_run_ends_without_scores(tmp_path, cache, recorder):
    config = tiny_run(tmp_path, steps=5)
    config = dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, lr_scale=1e38)
    )
    with pytest.raises(NonFiniteUpdate) as error:
        loop.train(start(config, tmp_path, cache), score=None)
    assert recorder.calls[-1] == ("end", error.value.step, {})
