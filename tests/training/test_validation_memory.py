"""The memory of evaluation programs is checked before they run."""

import dataclasses

import numpy as np
import pytest
from helpers.refusals import refused
from helpers.runs import start, tiny_run

from t2t_flax.data.dataset import split_store
from t2t_flax.data.sources import toy
from t2t_flax.tasks import task_of
from t2t_flax.training import setup
from t2t_flax.training.train_state import init_state
from t2t_flax.training.validation import ValidationLoss, validation_loss


@pytest.fixture
def run(tmp_path, cache):
    """A run whose validation set has one very long source sentence, on line 4."""
    sides = [list(side) for side in zip(*toy.pairs("valid", 9), strict=True)]
    sides[0][3] = "the house is red " * 100
    for side, lines in zip(("en", "de"), sides, strict=True):
        (tmp_path / f"valid.{side}").write_text("".join(f"{line}\n" for line in lines))
    data = dict(valid=f"{tmp_path}/valid.en,{tmp_path}/valid.de", test="toy:test:20")
    return start(tiny_run(tmp_path, data=data, eval=dict(every_steps=2)), tmp_path / "run", cache)


def memory_estimates(monkeypatch, make) -> list[int]:
    """Memory estimates, in bytes, of the programs of `make()`, in order."""
    checks = []

    def check(compiled, available, name, advice, *, resident=()):
        checks.append(setup.program_memory(compiled)["peak"] + setup.resident_bytes(resident))

    with monkeypatch.context() as patch:
        patch.setattr("t2t_flax.training.setup.check_fits_in_memory", check)
        make()
    return checks


def test_too_long_validation_pair_is_reported_before_training(run, monkeypatch, tmp_path, cache):
    long, usual = memory_estimates(monkeypatch, lambda: validation_loss(run))
    assert usual < long, "other pairs keep shorter rows"
    monkeypatch.setattr(setup, "device_memory", lambda: long - 1)
    with refused("config.data.valid", "valid.en line", "valid.de line", "line 4"):
        validation_loss(run)
    plain = start(tiny_run(tmp_path, eval=dict(every_steps=2)), tmp_path / "plain", cache)
    monkeypatch.setattr(setup, "device_memory", lambda: 1)
    with refused("config.data.microbatch_tokens"):
        validation_loss(plain)


def test_optimizer_state_counts_in_the_memory_check(run, monkeypatch):
    parts = run.config, run.model, run.mesh, run.abstract.params, run.corpus.valid["valid"]
    without_optimizer, with_optimizer = (
        memory_estimates(monkeypatch, make)[0]
        for make in (lambda: ValidationLoss(*parts), lambda: validation_loss(run))
    )
    state, _ = init_state(run.config, run.model, run.tx, run.parametrization, run.mesh)
    assert (
        with_optimizer - without_optimizer
        == setup.resident_bytes(state.opt_state)
        > 2 * setup.resident_bytes(state.params) * 0.99
    )


def test_memory_error_names_the_test_set(run, monkeypatch, tmp_path):
    store = split_store(task_of(run.config), tmp_path / "run", "test", run.corpus.tokenizers)
    monkeypatch.setattr(setup, "device_memory", lambda: 1)
    with refused("config.data.test"):
        ValidationLoss(run.config, run.model, run.mesh, run.abstract.params, store, "test")


def test_validation_loss_includes_long_pairs(run):
    """The total loss is the token-weighted mean of the losses of the pairs."""
    state, _ = init_state(run.config, run.model, run.tx, run.parametrization, run.mesh)
    store, config = run.corpus.valid["valid"], run.config
    all_rows = ValidationLoss(config, run.model, run.mesh, run.abstract.params, store)(state.params)
    one_row = ValidationLoss(
        small_rows(config, store.longest), run.model, run.mesh, run.abstract.params, store
    )(state.params)
    assert np.isfinite(all_rows["nll"]) and all_rows == pytest.approx(one_row, rel=1e-5)


def small_rows(config, length):
    """Return the config with rows for the longest pair, so that all rows have one length."""
    return dataclasses.replace(
        config, data=dataclasses.replace(config.data, pack_length=8 * (length // 8 + 1))
    )
