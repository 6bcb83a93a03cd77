"""A stop at any moment changes nothing that anyone can see later.

The small version of `benchmarks/kill_drill.py`.
"""

import json
import signal
from pathlib import Path

import jax.numpy as jnp
import pytest
import tensorboardX  # noqa: F401  before a run does so in a thread, whose folder would come late
from helpers.configs import small_config
from helpers.runs import start, tiny_run
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.errors import NonFiniteUpdate
from t2t_flax.evaluation.restore import load
from t2t_flax.training import loop, train_step
from t2t_flax.training.checkpoint_selection import is_scheduled, regular_steps
from t2t_flax.training.progress import read_metrics

HERE = {"mesh.data": "-1"}


@given(
    st.integers(0, 7), st.integers(0, 3), st.integers(1, 9), st.integers(1, 30), st.integers(0, 30)
)
def test_regular_steps_are_those_of_a_run_started_longer(every, epochs, epoch, end, more):
    """A finished run that is extended.

    Its former last update is regular only where it is scheduled.
    """
    keys = dict(every_steps=every, every_epochs=epochs)
    short = small_config(checkpoint=keys, train=dict(steps=end))
    long = small_config(checkpoint=keys, train=dict(steps=end + more + 1))
    intervals = [n for n in (every, epochs * epoch) if n]
    expected = [step for step in range(end, 0, -1) if any(step % n == 0 for n in intervals)]
    assert list(regular_steps(long, epoch, end)) == expected
    assert list(regular_steps(short, epoch, end)) == sorted(
        {*expected, *(() if epochs else (end,))}, reverse=True
    )
    assert all(is_scheduled(short, epoch, step) for step in expected)


def score(params, after_batch, compiling):
    """Stands for a decoding of two batches."""
    after_batch()
    after_batch()
    return {"valid_bleu": 5.0}


def visible(workdir: Path) -> dict:
    """Return everything visible of a run, except times and arrays, whose checksums are metadata."""

    def timeless(value):
        if isinstance(value, dict):
            return {
                k: timeless(v)
                for k, v in value.items()
                if not k.startswith(("seconds", "digest", "mfu_", "target_tokens_per"))
            }
        return [timeless(x) for x in value] if isinstance(value, list) else value

    metas = {
        int(p.parts[-3]): json.loads(p.read_text())
        for p in workdir.glob("checkpoints/*/meta/metadata")
    }
    return {
        "names": sorted(str(p.relative_to(workdir)) for p in workdir.glob("*")),
        "in checkpoints": sorted(str(p.relative_to(workdir)) for p in workdir.glob("checkpoints/*/*")),
        "metas": {step: timeless(meta) for step, meta in metas.items()},
        "metrics": timeless(read_metrics(workdir)),
        "trained": (workdir / "trained.json").read_text(),
        "average": load(workdir, average=3, at_most=True, overrides=HERE).steps,
    }  # fmt: skip


class StopAt(RunSupervisor):
    """Gets SIGTERM at the `call`-th time that it is asked whether to stop."""

    def __init__(self, run, call: int = 0):
        super().__init__(ProcessGroup(), run.config)
        self._call, self.asked = call, 0

    def should_stop(self) -> bool:
        self.asked += 1
        if self.asked == self._call:
            signal.raise_signal(signal.SIGTERM)
            assert self.stop_requested.wait(60.0)
        return super().should_stop()


def train(config, workdir, cache, call: int = 0) -> tuple[loop.TrainingEnd, int]:
    """Trains with a stop at that call.

    Returns the outcome and how often the supervisor was asked.
    """
    run = start(config, workdir, cache)
    with StopAt(run, call) as supervisor:
        outcome = loop.train(run, score, supervisor=supervisor, say=lambda text: None)
    return outcome, supervisor.asked


def stops(keys, tmp_path, cache, calls=None) -> None:
    """Stop a run at each of these questions (default: all); compare it with one never stopped."""
    config = tiny_run(tmp_path, **keys)
    _, asked = train(config, tmp_path / "whole", cache)
    expected = visible(tmp_path / "whole")
    for call in calls or range(1, asked + 1):
        workdir = tmp_path / str(call)
        outcome, _ = train(config, workdir, cache, call)
        assert outcome.reason == "SIGTERM"
        outcome, _ = train(config, workdir, cache)
        assert outcome.reason == "steps"
        actual = visible(workdir)
        for name in expected:
            assert actual[name] == expected[name], (call, name)


EVERY_4 = dict(
    steps=12,
    eval=dict(decode_every_steps=4, metric="bleu"),
    checkpoint=dict(every_steps=4, keep_last=3, keep_best=1),
    log=dict(every_steps=3),
)


@pytest.mark.slow
def test_stop_in_an_evaluation_leaves_the_average_as_it_is(tmp_path, cache):
    """In the evaluation after update 8, which has a regular checkpoint too.

    Asked: 8 updates and the 2 batches after 4.
    """
    stops(EVERY_4, tmp_path, cache, calls=[12])
    assert load(tmp_path / "12", average=3, overrides=HERE).steps == (12, 8, 4)


@pytest.mark.drill
def test_stop_wherever_a_run_asks_changes_nothing(tmp_path, cache):
    """Evaluations beside and between the regular checkpoints, the last update beside them."""
    keys = dict(
        steps=5,
        eval=dict(every_steps=2, decode_every_steps=2, metric="bleu"),
        checkpoint=dict(every_steps=2, keep_last=1, keep_best=1),
        log=dict(every_steps=3),
    )
    stops(keys, tmp_path, cache)


@pytest.mark.slow
def test_extended_run_averages_the_checkpoints_of_one_started_longer(tmp_path, cache):
    short, long = (tiny_run(tmp_path, **EVERY_4 | dict(steps=steps)) for steps in (6, 9))
    train(short, tmp_path / "extended", cache)
    assert load(tmp_path / "extended", average=2, overrides=HERE).steps == (6, 4)
    train(long, tmp_path / "extended", cache)
    train(long, tmp_path / "longer", cache)
    assert visible(tmp_path / "extended")["average"] == visible(tmp_path / "longer")["average"]
    assert load(tmp_path / "longer", average=3, overrides=HERE).steps == (9, 8, 4)


@pytest.mark.slow
def test_skips_in_a_row_are_counted_across_a_stop(tmp_path, cache, monkeypatch):
    """Updates 2 to 5 are not finite.

    More than three in a row are too many, wherever the run stopped in between.
    """
    make_train_step = train_step.make_train_step

    def broken(*parts):
        update = make_train_step(*parts)

        def not_finite(state, batch):
            new, metrics = update(state, batch)
            broken = (new.step >= 2) & (new.step <= 5)
            return new, metrics | {"finite": jnp.where(broken, 0.0, metrics["finite"])}

        return not_finite

    monkeypatch.setattr(train_step, "make_train_step", broken)
    config = tiny_run(tmp_path, steps=8, train=dict(steps=8, non_finite="skip"))
    monkeypatch.setattr("t2t_flax.training.run.MOST_SKIPPED", 3)
    for call in (0, 3):
        workdir = tmp_path / str(call)
        if call:
            assert train(config, workdir, cache, call)[0].reason == "SIGTERM"
        with pytest.raises(NonFiniteUpdate) as error:
            train(config, workdir, cache)
        assert error.value.step == 5
