"""Branches begin where a run stood; the critical batch size is the largest at no cost in loss."""

import json
import os
from fractions import Fraction

import pytest
from etils import epath
from helpers.configs import small_config
from helpers.refusals import assert_names, refused
from helpers.runs import tiny_run

from t2t_flax import api
from t2t_flax.extensions.scaling import branch_command
from t2t_flax.extensions.scaling.branches import check_run, claim, critical_factor, plan
from t2t_flax.process_setup import ALONE
from t2t_flax.training.optimizer import learning_rate_schedule

HALF, ONE, TWO, FOUR = map(Fraction, ("1/2", "1", "2", "4"))


def test_critical_batch_is_the_largest_within_the_tolerance():
    losses = [(HALF, 2.0), (ONE, 2.005), (TWO, 2.02), (FOUR, 2.005)]
    assert critical_factor(losses, 0.01) == (ONE, True)
    assert critical_factor(losses[::-1], 0.03) == (FOUR, False)
    assert critical_factor([(HALF, 2.0), (ONE, float("nan"))], 0.01) == (HALF, True)


def test_branches_see_equally_many_tokens_at_the_rate_of_their_batch():
    stored = small_config(data=dict(valid="toy:valid", batch_tokens=1000))
    half, one, four = plan(stored, 100, [HALF, ONE, FOUR], 16_000, 1, {}, "cache")
    assert [(b.start, b.end) for b in (half, one, four)] == [(200, 232), (100, 116), (25, 29)]
    assert [b.config.data.batch_tokens for b in (half, one, four)] == [500, 1000, 4000]
    rates = [b.config.optimizer.peak_lr for b in (half, one, four)]
    assert rates[2] == 2 * rates[1] == pytest.approx(2 * 2**0.5 * rates[0])
    with refused("--tokens=7000"):
        plan(stored, 100, [ONE, FOUR], 7000, 1, {}, "cache")


def test_branches_do_not_begin_where_the_rate_is_0():
    decay = {"optimizer.schedule": "linear", "optimizers.decay_steps": 5000}
    stored = small_config(data=dict(valid="toy:valid", batch_tokens=1000)).with_values(decay)
    plan(stored, 4999, [ONE], 16_000, 1, {}, "cache")
    with refused("--step=5000"):
        plan(stored, 5000, [ONE], 16_000, 1, {}, "cache")


def test_a_branch_starts_after_an_update_even_of_a_large_batch():
    stored = small_config(data=dict(valid="toy:valid", batch_tokens=1000))
    assert plan(stored, 1, [FOUR], 8_000, 1, {}, "cache")[0].start == 1


def test_a_run_whose_batches_grow_is_refused(tmp_path):
    pytest.importorskip("t2t_flax.extensions.mixtures")
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    stored = small_config(data=dict(valid="toy:valid"), mixtures=dict(batch_tokens="9: 50000"))
    with refused("config.mixtures.batch_tokens"):
        check_run(epath.Path(tmp_path), stored, 4)


def test_a_run_whose_mixture_changes_is_refused(tmp_path):
    pytest.importorskip("t2t_flax.extensions.mixtures")
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    keys = dict(data=dict(valid="toy:valid", train="a=toy:train:50; b=toy:train:60"))
    same = small_config(**keys, mixtures=dict(shares="a=3,b=1"))
    check_run(epath.Path(tmp_path), same, 4)
    with refused("config.mixtures.shares"):
        check_run(
            epath.Path(tmp_path), same.with_values({"mixtures.shares": "a=3,b=1; 20: b=1"}), 4
        )


@pytest.mark.parametrize(
    "schedule",
    [dict(schedule="cosine"), dict(schedule="linear"), dict(schedule="wsd", cooldown_steps=20)],
)
def test_a_branch_of_any_schedule_has_a_constant_rate(schedule):
    decay = {"optimizers.decay_steps": 200, "optimizers.min_lr": 1e-5} | {
        f"optimizer{'s' if key == 'cooldown_steps' else ''}.{key}": value
        for key, value in schedule.items()
    }
    stored = small_config(data=dict(valid="toy:valid", batch_tokens=1000)).with_values(decay)
    (branch,) = plan(stored, 100, [ONE], 16_000, 1, {}, "cache")
    rate = learning_rate_schedule(stored)(100)
    assert learning_rate_schedule(branch.config)(branch.start) == learning_rate_schedule(
        branch.config
    )(500)
    assert learning_rate_schedule(branch.config)(500) == pytest.approx(rate)


def test_test_sets_that_other_keys_read_stay():
    pytest.importorskip("t2t_flax.extensions.corpora")
    data = dict(valid="toy:valid", test="toy:test", batch_tokens=1000)
    for keys, test in (
        ({}, ""),
        (dict(filters=dict(held_out="pair")), "toy:test"),
    ):
        (branch,) = plan(small_config(data=data, **keys), 100, [ONE], 16_000, 1, {}, "cache")
        assert branch.config.data.test == test


def test_moving_averages_of_branches_go_back_as_many_tokens():
    stored = small_config(
        data=dict(valid="toy:valid", batch_tokens=1000), optimizer=dict(ema_decay=0.99)
    )
    half, four = plan(stored, 100, [HALF, FOUR], 16_000, 1, {}, "cache")
    decays = half.config.optimizer.ema_decay**32, four.config.optimizer.ema_decay**4
    assert decays == pytest.approx([0.99**16] * 2)


def test_folder_of_other_branches_is_refused(tmp_path):
    output, run = epath.Path(tmp_path / "branches"), epath.Path(tmp_path / "run")
    claim(output, run, 900, 2000)
    claim(output, run, 900, 2000)
    for step, tokens, other in (
        (600, 2000, run),
        (900, 1000, run),
        (900, 2000, epath.Path(tmp_path / "another")),
    ):
        with refused("--output="):
            claim(output, other, step, tokens)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("")
    with refused("mine", "branches.txt"):
        claim(epath.Path(tmp_path / "mine"), run, 900, 2000)


def losses(workdir) -> dict[int, float]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, cache):
    """A run of 12 updates with a constant rate, with all checkpoints."""
    workdir = tmp_path_factory.mktemp("branched") / "run"
    run = tiny_run(
        workdir,
        steps=12,
        optimizer=dict(schedule="constant", peak_lr=1e-3, warmup_steps=1),
        mesh=dict(cpu_devices=1, data=-1),
        data=dict(cache=str(cache), test=""),
        checkpoint=dict(every_steps=4, keep_last=5, keep_best=0),
    )
    api.train(run, workdir)
    return workdir


@pytest.mark.slow
def test_a_branch_of_the_same_size_is_the_run_itself(workdir, tmp_path, cache, capsys, caplog):
    """Bit for bit, where the run's rate is constant.

    The others are measured beside it, and again without training.
    """
    output = tmp_path / "branches"
    flags = [f"--workdir={workdir}", f"--output={output}", "--step=8", "--tokens=1024"]
    flags += ["--factors=1,2", "--noise-batches=16", f"--config.data.cache={cache}"]
    assert branch_command.run(flags) == 0
    assert ALONE not in os.environ, "what the process runs next may be one of several"
    assert "noise scale:" in capsys.readouterr().out
    of_run, of_branch = losses(workdir), losses(output / "x1,seed=0")
    assert of_branch == {step: of_run[step] for step in (9, 10, 11, 12)}
    assert list(losses(output / "x2,seed=0")) == [5, 6]
    assert branch_command.run([*flags, "--tolerance=100"]) == 0
    assert "512 tokens" in capsys.readouterr().out
    with refused("update 7"):
        branch_command.run([flags[0], flags[1], "--step=7", "--tokens=1024"])
    assert_names(caplog.text, f"--config.data.cache={cache}")
    assert not (workdir / "data").exists(), "the corpus was prepared again"


@pytest.mark.slow
def test_a_branch_that_diverges_is_a_row_of_the_table(workdir, tmp_path, capsys):
    output = tmp_path / "branches"
    flags = [
        f"--workdir={workdir}",
        f"--output={output}",
        "--step=4",
        "--tokens=1024",
        "--factors=1,2",
    ]
    flags += ["--noise-batches=0", "--config.optimizer.peak_lr=1e30"]
    for _ in range(2):
        assert branch_command.run(flags) == 0
        out = capsys.readouterr().out
        assert "critical batch size: unknown" in out and str(output / "x2,seed=0") in out
