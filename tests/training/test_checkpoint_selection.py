"""Selection of checkpoints, and their mean with at most two parameter trees in memory."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.refusals import assert_names, refused
from helpers.runs import start, tiny_run

from t2t_flax import config as config_lib
from t2t_flax.evaluation.restore import load
from t2t_flax.training import checkpoint_selection, loop
from t2t_flax.training.checkpoint_selection import RestoredParams, mean
from t2t_flax.training.checkpoints import Checkpoints

HERE = {"mesh.data": "-1"}  # all simulated devices


def tree(seed: int) -> dict:
    keys = jax.random.split(jax.random.key(seed), 2)
    return {"a": jax.random.normal(keys[0], (3, 4)), "b": {"c": jax.random.normal(keys[1], (5,))}}


def test_mean_is_the_float32_sum_divided_once():
    """Bit-identical to the sequential sum divided by the count."""
    averaged = mean(RestoredParams(tree(i), (i,)) for i in range(5))
    expected = jax.tree.map(
        lambda *x: sum(jnp.asarray(a, jnp.float32) for a in x) / 5, *map(tree, range(5))
    )
    jax.tree.map(np.testing.assert_array_equal, averaged.params, expected)
    assert averaged.steps == (0, 1, 2, 3, 4)


def test_parts_are_weighted_by_their_number_of_checkpoints():
    averaged = mean(
        iter(
            [
                RestoredParams(tree(0), (3, 2, 1)),
                RestoredParams(tree(1), (4,)),
                RestoredParams(tree(2), (6, 5)),
            ]
        )
    )
    for x, *values in zip(
        *map(jax.tree.leaves, (averaged.params, *map(tree, range(3)))), strict=True
    ):
        np.testing.assert_allclose(x, np.average(values, axis=0, weights=[3, 1, 2]), atol=1e-6)
    part = RestoredParams(tree(0), (1,), 0.5)
    leaves = jax.tree.leaves(part.params)
    alone = mean([part])
    assert all(x is y for x, y in zip(jax.tree.leaves(alone.params), leaves, strict=True))
    assert (alone.steps, alone.metric) == ((1,), 0.5)


@pytest.fixture(scope="module")
def six(tmp_path_factory, cache):
    """A run with a checkpoint after each of its six updates."""
    workdir = tmp_path_factory.mktemp("six")
    config = tiny_run(workdir, steps=6, checkpoint=dict(every_steps=1, keep_last=9))
    loop.train(start(config, workdir, cache), score=None)
    return workdir


def live_bytes() -> int:
    return sum(x.nbytes for x in jax.live_arrays())


@pytest.mark.slow
def test_averaging_holds_at_most_two_trees(six, monkeypatch):
    # NumPy's copies of small trees stay with them.
    monkeypatch.setattr("t2t_flax.training.checksums._SMALL", 0)
    tree_bytes = sum(x.nbytes for x in jax.tree.leaves(load(six, step=6, overrides=HERE).params))
    before, live = live_bytes(), []
    original = checkpoint_selection.restore_params

    def counted(*arguments):
        restored = original(*arguments)
        live.append(live_bytes() - before)
        return restored

    monkeypatch.setattr(checkpoint_selection, "restore_params", counted)
    load(six, average=6, overrides=HERE)
    assert len(live) == 6 and max(live) <= 2.01 * tree_bytes, [n / tree_bytes for n in live]


@pytest.fixture(scope="module")
def best_at_4(tmp_path_factory, cache):
    """A run with regular checkpoints 4 (the best) and 10 (the last)."""
    workdir, scores = tmp_path_factory.mktemp("best"), iter([5.0, 9.0, 8.0, 7.0, 6.0])
    config = tiny_run(
        workdir,
        steps=10,
        eval=dict(decode_every_steps=2, metric="bleu"),
        checkpoint=dict(every_steps=2, keep_last=1, keep_best=1),
    )
    loop.train(start(config, workdir, cache), score=lambda *_: {"valid_bleu": next(scores)})
    assert Checkpoints(workdir / "checkpoints", keep_last=9).steps() == [4, 10]
    return workdir


def test_best_checkpoint_has_the_best_validation_metric(best_at_4):
    loaded = load(best_at_4, best=True, overrides=HERE)
    assert (loaded.steps, loaded.checkpoint.metric) == ((4,), 9.0)
    assert load(best_at_4, overrides=HERE).steps == (10,)


def test_average_skips_checkpoints_kept_only_as_best(best_at_4):
    with refused("[10, 8]", "[10]", "every_steps", "keep_last"):
        load(best_at_4, average=2, overrides=HERE)
    assert load(best_at_4, average=2, at_most=True, overrides=HERE).steps == (10,)


@pytest.mark.slow
def test_average_stops_at_a_gap_after_keep_last_grows(best_at_4, tmp_path, cache):
    """keep_last grows on resume: what was deleted before is known from the schedule."""
    copy = shutil.copytree(best_at_4, tmp_path / "copy")
    config = tiny_run(
        copy,
        steps=14,
        eval=dict(decode_every_steps=2, metric="bleu"),
        checkpoint=dict(every_steps=2, keep_last=5, keep_best=1),
    )
    loop.train(start(config, copy, cache), score=lambda *_: {"valid_bleu": 1.0})
    assert Checkpoints(copy / "checkpoints", keep_last=9).steps() == [4, 10, 12, 14]
    assert load(copy, average=3, overrides=HERE).steps == (14, 12, 10)
    with refused("12, 10]", "10, 8]"):
        load(copy, average=4, overrides=HERE)
    assert load(copy, average=2, step=12, overrides=HERE).steps == (12, 10)


@pytest.mark.slow
def test_average_skips_checkpoints_written_at_a_stop(tmp_path, cache):
    """Stopped before its first regular checkpoint, and after it."""
    config = tiny_run(tmp_path, steps=9, checkpoint=dict(every_steps=3, keep_last=3))
    for stop, expected, regular in ((2, (2,), "[]"), (5, (3,), "[3]")):
        loop.train(
            start(
                dataclasses.replace(config, train=dataclasses.replace(config.train, steps=stop)),
                tmp_path,
                cache,
            ),
            score=None,
        )
        (tmp_path / "config.json").write_text(config_lib.to_json(config))
        with refused(regular):
            load(tmp_path, average=2, overrides=HERE)
        assert load(tmp_path, average=2, at_most=True, overrides=HERE).steps == expected
    assert load(tmp_path, average=2, step=5, overrides=HERE).steps == (5, 3)


def test_best_without_metric_is_refused_and_with_damage_is_the_best_of_the_others(
    six, best_at_4, tmp_path, caplog
):
    with refused("config.eval.metric", "nll", "keep_best"):
        load(six, best=True, overrides=HERE)
    for choice in (dict(step=4), dict(average=2)):
        with refused("--best"):
            load(best_at_4, best=True, **choice, overrides=HERE)
    copy = shutil.copytree(best_at_4, tmp_path / "copy")
    (copy / "checkpoints" / "4" / "meta" / "metadata").write_text("{")
    assert load(copy, best=True, overrides=HERE).steps == (10,)
    assert_names(caplog.text, "bleu", "step 4", "step 10")


def test_a_damaged_checkpoint_does_not_end_an_average_at_most(six, tmp_path, caplog):
    """The final evaluation of a run takes the others."""
    copy = shutil.copytree(six, tmp_path / "copy")
    steps = load(copy, average=3, overrides=HERE).steps
    array = max(
        (copy / "checkpoints" / str(steps[1]) / "params").rglob("*"),
        key=lambda p: p.is_file() and p.stat().st_size,
    )
    array.write_bytes(b"")
    with refused(str(steps[1])):
        load(copy, average=3, overrides=HERE)
    assert load(copy, average=3, at_most=True, overrides=HERE).steps == (steps[0], steps[2])
    assert_names(caplog.text, str(steps[1]))
