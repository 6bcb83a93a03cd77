"""Hooks are called at the moments of a run, in every process."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from helpers.refusals import refused
from helpers.runs import start, tiny_run

from t2t_flax import registry
from t2t_flax.errors import NonFiniteUpdate, UserError
from t2t_flax.training import hooks, loop, run
from t2t_flax.training.progress import read_metrics


class Recorder(hooks.Hook):
    def __init__(self):
        self.calls = []

    def measure(self, params, grads):
        return {"weights": jnp.float32(len(params)), "loss": jnp.float32(-1)}

    def on_start(self, run, progress):
        self.calls.append(("start", progress.step))

    def before_update(self, step, state, batch):
        assert jax.device_get(state.step) == step - 1
        self.calls.append(("before", step))

    def on_update(self, step, batch, values):
        self.calls.append(("update", step))
        values["counted"] = step * values["weights"]

    def on_log(self, step, values):
        self.calls.append(("log", step))

    def on_checkpoint(self, step):
        self.calls.append(("checkpoint", step))

    def on_end(self, step, scores):
        self.calls.append(("end", step, scores))


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setattr(run, "make_hooks", lambda *_: [made])
    return made


def test_moments_of_a_run(tmp_path, cache, recorder):
    """A finished run awaits the scores of its final evaluation; `measure` replaces no metric of the update."""
    keys = dict(eval=dict(every_steps=4), log=dict(every_steps=2))
    outcome = loop.train(start(tiny_run(tmp_path, steps=5, **keys), tmp_path, cache), score=None)
    names = (
        "start0 before1 update1 before2 before3 update2 log2 before4 update3 update4 log4 log4 checkpoint4 "
        "before5 update5 checkpoint5"
    )
    assert [f"{name}{step}" for name, step in recorder.calls] == names.split()
    assert outcome.hooks == [recorder]
    lines = read_metrics(tmp_path)
    assert [line.get("counted", 0) / line["step"] > 1 for line in lines] == [True, True, False]
    assert lines[0]["loss"] > 0


def test_a_hook_that_refuses_a_run_leaves_it_as_it_was(tmp_path, cache, recorder, monkeypatch):
    def refuse(run, progress):
        raise UserError("unfit")

    loop.train(start(tiny_run(tmp_path, steps=4), tmp_path, cache), score=None)
    (tmp_path / "complete.json").write_text("{}")
    before = (tmp_path / "config.json").read_text()
    monkeypatch.setattr(recorder, "on_start", refuse)
    with refused("unfit"):
        loop.train(start(tiny_run(tmp_path, steps=8), tmp_path, cache), score=None)
    assert (tmp_path / "complete.json").exists() and (tmp_path / "config.json").read_text() == before


def test_diverged_run_ends_without_scores(tmp_path, cache, recorder):
    config = tiny_run(tmp_path, steps=5)
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr_scale=1e38))
    with pytest.raises(NonFiniteUpdate) as error:
        loop.train(start(config, tmp_path, cache), score=None)
    assert recorder.calls[-1] == ("end", error.value.step, {})


def test_hook_is_made_where_its_key_is_set(monkeypatch, tmp_path):
    features = registry.Features()
    features.add("json", "train.steps")
    features.add("absent_module", "checkpoint.every_epochs", "optimizer.ema_decay")
    assert [module.__name__ for module in features.of(tiny_run(tmp_path))] == ["json"]
