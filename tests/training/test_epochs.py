"""Validation and checkpoints by epochs, and patience on the smoothed loss."""

import json
import signal

import jax
import numpy as np
import pytest
from etils import epath
from helpers.runs import start, tiny_run

from t2t_flax.data.batching.batches import Batches
from t2t_flax.evaluation.restore import load
from t2t_flax.training import loop
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.run import due_after
from t2t_flax.training.train_state import init_state
from t2t_flax.training.validation import ValidationLoss

EPOCHS = dict(
    data=dict(batch_tokens=2048, microbatch_tokens=0),
    eval=dict(every_steps=0, every_epochs=1),
    checkpoint=dict(every_steps=0, every_epochs=1, keep_last=2, keep_best=0),
)


def metrics(workdir, name):
    rows = [
        json.loads(line)
        for line in (epath.Path(workdir) / "metrics.jsonl").read_text().splitlines()
    ]
    return {row["step"]: row[name] for row in rows if name in row}


@pytest.mark.slow
def test_epochs_are_counted_in_updates(tmp_path, cache):
    """eval.every_epochs and checkpoint.every_epochs take effect at the end of an epoch."""
    config = tiny_run(tmp_path, steps=42, **EPOCHS)
    run = start(config, tmp_path, cache)
    epoch = Batches(run.corpus.train, config.data, seed=0).updates_per_epoch
    assert 1 < epoch < 20
    assert [due_after(run, n).checkpoint for n in (epoch - 1, epoch, epoch + 1, 42)] == [
        False,
        True,
        False,
        False,
    ]
    loop.train(run, score=None)
    assert sorted(metrics(tmp_path, "valid_loss")) == list(range(epoch, 43, epoch))
    steps = Checkpoints(tmp_path / "checkpoints").steps()
    assert 42 % epoch, "the last update is saved beside the regular ones"
    assert steps == [*range(epoch, 43, epoch)][-2:] + [42]
    with jax.default_device(jax.devices()[0]):
        assert load(tmp_path, average=2, overrides={"mesh.data": "-1"}).steps == tuple(
            reversed(steps[:2])
        )


def test_validation_loss_with_and_without_smoothing(tmp_path, cache):
    config = tiny_run(tmp_path, steps=1, loss=dict(label_smoothing=0.0), **EPOCHS)
    run = start(config, tmp_path, cache)
    state, _ = init_state(config, run.model, run.tx, parametrization_of(config), run.mesh)
    plain = ValidationLoss(
        config, run.model, run.mesh, run.abstract.params, run.corpus.valid["valid"]
    )(state.params)
    np.testing.assert_allclose(plain["nll"], plain["loss"], rtol=1e-6)
    config = tiny_run(tmp_path, steps=1, **EPOCHS)
    smoothed = ValidationLoss(
        config, run.model, run.mesh, run.abstract.params, run.corpus.valid["valid"]
    )(state.params)
    np.testing.assert_allclose(plain["nll"], smoothed["nll"], rtol=1e-6)
    assert smoothed["loss"] != smoothed["nll"]


@pytest.mark.slow
def test_patience_on_the_smoothed_loss(tmp_path, cache, monkeypatch):
    """eval.metric = loss: the nll falls throughout, the loss does not, so patience ends the run."""
    values = iter([(5.0, 3.0), (4.0, 2.0), (3.0, 2.5), (2.0, 2.5), (1.0, 1.0)])
    monkeypatch.setattr(
        "t2t_flax.training.validation.ValidationLoss",
        lambda *args: lambda *_: dict(zip(("nll", "loss"), next(values), strict=True)),
    )
    groups = EPOCHS | dict(eval=EPOCHS["eval"] | dict(metric="loss", patience=2))
    outcome = loop.train(
        start(tiny_run(tmp_path, steps=400, **groups), tmp_path, cache), score=None
    )
    assert outcome.reason == "patience" and len(metrics(tmp_path, "valid_loss")) == 4


@pytest.mark.slow
def test_stop_between_epochs_replaces_no_regular_checkpoint(tmp_path, cache, monkeypatch):
    config = tiny_run(tmp_path, steps=42, **EPOCHS)
    run = start(config, tmp_path, cache)
    epoch = run.batches.updates_per_epoch

    def signal_between_epochs(run, step):
        if step == 2 * epoch + 1:
            signal.raise_signal(signal.SIGTERM)
        return due_after(run, step)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "due_after", signal_between_epochs)
        outcome = loop.train(run, score=None)
    stop = outcome.step
    assert 2 * epoch < stop < 3 * epoch and outcome.reason == "SIGTERM"
    assert Checkpoints(tmp_path / "checkpoints").steps() == [epoch, 2 * epoch, stop]
    overrides = {"mesh.data": "-1"}
    with jax.default_device(jax.devices()[0]):
        assert load(tmp_path, average=2, overrides=overrides).steps == (2 * epoch, epoch)
        assert load(tmp_path, overrides=overrides).steps == (stop,)
    outcome = loop.train(start(config, tmp_path, cache), score=None)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [*range(epoch, 43, epoch)][-2:] + [42]
