"""The training loop on a small corpus: resuming, stopping, saving, failing."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.configs import small_config
from helpers.full_disk import full_disk
from helpers.processes import environment
from helpers.refusals import assert_names, refused
from helpers.runs import copy_at, start, tiny_run

from t2t_flax import config as config_lib
from t2t_flax.__main__ import main
from t2t_flax.config.overrides import recorded_changes
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.errors import NonFiniteUpdate
from t2t_flax.tasks import task_of
from t2t_flax.training import loop
from t2t_flax.training import train_step as step
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.progress import read_metrics

ROOT = Path(__file__).parents[2]


def curve(workdir) -> list[tuple[int, float, float]]:
    return [(m["step"], m["loss"], m["grad_norm"]) for m in read_metrics(workdir) if "loss" in m]


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory, cache):
    """Return (workdir, outcome): 12 updates, checkpoints at 4, 8, 12, evaluations at 6, 12."""
    workdir = tmp_path_factory.mktemp("run")
    outcome = loop.train(start(run_config(), workdir, cache), score=None)
    assert outcome.reason == "steps" and outcome.step == 12
    return workdir, outcome


def run_config(**groups):
    return tiny_run("", **{"eval": dict(every_steps=6)} | groups)


def assert_same_state(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_metrics_of_updates_and_evaluations(uninterrupted):
    lines = read_metrics(uninterrupted[0])
    assert [step for step, _, _ in curve(uninterrupted[0])] == list(range(1, 13))
    update = next(line for line in lines if line["step"] == 3)
    for name in ("loss", "nll", "ppl", "accuracy", "grad_norm", "learning_rate", "target_tokens_per_second", "fill", "source_tokens",
                 "target_tokens", "mfu_hardware_measured", "mfu_useful_measured", "seconds"):  # fmt: skip
        assert name in update
    assert set(update["seconds"]) >= {"compile", "data", "step"}
    assert 0 < update["mfu_useful_measured"] <= update["mfu_hardware_measured"]
    # There is no data sheet for a CPU, so no MFU.
    assert not any(name.endswith("data_sheet") for name in update)
    valid = [line for line in lines if "valid_nll" in line]
    assert [line["step"] for line in valid] == [6, 12]  # eval.every_steps
    assert 0 < valid[0]["valid_accuracy"] < 1
    assert valid[0]["valid_ppl"] == pytest.approx(math.exp(valid[0]["valid_nll"]))


def command(workdir, cache, config_file, *more):
    return [
        sys.executable, "-m", "t2t_flax", "train", f"--config={config_file}", f"--workdir={workdir}",
        f"--config.data.cache={cache}", *more,
    ]  # fmt: skip


@pytest.fixture(scope="session")
def config_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "tiny.py"
    text = config_lib.to_json(tiny_run(""))
    path.write_text(
        "import json\nfrom t2t_flax import config as lib\n"
        f"def get_config():\n    return lib.to_config_dict(lib.from_json({text!r}))\n"
    )
    return path


def wait_for_step(workdir, at_least, process, seconds=400):
    for _ in range(seconds * 20):
        lines = read_metrics(workdir)
        if lines and lines[-1]["step"] >= at_least:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("the run did not get there")


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [signal.SIGHUP]
    + [pytest.param(n, marks=pytest.mark.drill) for n in (signal.SIGTERM, signal.SIGINT)],
)
def test_signal_saves_and_exits_with_75(tmp_path, cache, config_file, number):
    steps = "--config.train.steps=100000"
    options = dict(
        env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    process = subprocess.Popen(command(tmp_path / "run", cache, config_file, steps), **options)
    wait_for_step(tmp_path / "run", 5, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 75, output
    stopped = int(output.split("after update ")[-1].split(",")[0])
    assert Checkpoints(tmp_path / "run" / "checkpoints", keep_last=9).steps()[-1] == stopped


def nan_loss_at(*updates):
    """A loss that is NaN at these updates."""
    real = step.loss_sums

    def diverge(config, model, params, batch, noise):
        loss, sums = real(config, model, params, batch, noise)
        keys = jax.numpy.stack(
            [step.noise_key(config.seed.dropout, update - 1) for update in updates]
        )
        return jax.numpy.where((noise.key == keys).all(1).any(), jax.numpy.nan, loss), sums

    return diverge


def test_divergence_stops_the_run_before_it_is_saved(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(step, "loss_sums", nan_loss_at(5, 8))
    config = tiny_run(tmp_path, checkpoint=dict(every_steps=2))
    with refused("update 5", "loss nan", error=NonFiniteUpdate):
        loop.train(start(config, tmp_path, cache), score=None)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=9)
    assert checkpoints.steps() == [2, 4]
    monkeypatch.undo()
    outcome = loop.train(start(config, tmp_path, cache), score=None)
    assert outcome.step == 12


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_skipped_updates_do_not_change_the_others(tmp_path, cache, monkeypatch, resumed):
    """Updates 5 and 8 are not finite.

    Batches, dropout and learning rates of the others do not change.
    """
    monkeypatch.setattr(step, "loss_sums", nan_loss_at(5, 8))
    keys = dict(train=dict(non_finite="skip"))
    monkeypatch.setattr("t2t_flax.training.run.MOST_SKIPPED", 1)
    undisturbed = tmp_path / "whole"
    outcome = loop.train(start(tiny_run(undisturbed, **keys), undisturbed, cache), score=None)
    assert [n for n, _, _ in curve(undisturbed)] == [1, 2, 3, 4, 6, 7, 9, 10, 11, 12]
    lines = read_metrics(undisturbed)
    assert [(m["step"], m["skipped"].split(",")[0]) for m in lines if "skipped" in m] == [
        (n, f"update {n}: loss nan") for n in (5, 8)
    ]
    assert {m["step"]: m["skipped_updates"] for m in lines}[12] == 2
    rates = {m["step"]: m["learning_rate"] for m in lines if "learning_rate" in m}
    assert rates[12] == pytest.approx(float(step.learning_rate_schedule(small_config())(12)))
    if resumed:
        cut = tmp_path / "cut"
        loop.train(start(tiny_run(cut, steps=6, **keys), cut, cache), score=None)
        repeated = loop.train(start(tiny_run(cut, **keys), cut, cache), score=None)
        assert curve(cut) == curve(undisturbed)
        assert {m["step"]: m["skipped_updates"] for m in read_metrics(cut)}[12] == 2
        assert_same_state(repeated.state, outcome.state)


@pytest.mark.slow
def test_changed_optimizer_keys_are_logged_once_on_resume(tmp_path, cache, uninterrupted):
    """metrics.jsonl has it once, however often the run resumes; later checkpoints have it too."""
    copy_at(4, uninterrupted[0], tmp_path)
    changed = dict(optimizer=dict(lr_scale=0.5, max_grad_norm=1.0), checkpoint=dict(every_steps=2))
    expected = {"optimizer.lr_scale": [1.0, 0.5], "optimizer.max_grad_norm": [0.0, 1.0]}
    messages = []
    loop.train(
        start(run_config(steps=6, **changed), tmp_path, cache), score=None, say=messages.append
    )
    assert_names(messages[0], "optimizer.lr_scale", "1.0", "0.5", "update 4")
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=9)
    assert recorded_changes(checkpoints.meta(6)) == [{"step": 4, "changed": expected}]
    assert recorded_changes(checkpoints.meta(4)) == []
    (tmp_path / "checkpoints" / "6").rename(tmp_path / "away")
    loop.train(start(run_config(steps=8, **changed), tmp_path, cache), score=None)
    lines = read_metrics(tmp_path)
    assert [(m["step"], m["config_changed"]) for m in lines if "config_changed" in m] == [
        (4, expected)
    ]
    assert [step for step, _, _ in curve(tmp_path)] == list(range(1, 9))
    rates = {m["step"]: m["learning_rate"] for m in lines if "learning_rate" in m}
    assert rates[5] == pytest.approx(0.5 * rates[4] * 5 / 4)


@pytest.mark.slow
def test_suggested_flags_recover_a_diverged_run(tmp_path, cache, config_file, capsys):
    """Follows the message literally.

    First its flags, then its command that removes a bad checkpoint.
    """
    workdir = tmp_path / "a run"
    keys = ("optimizer.lr_scale=1e30", "checkpoint.every_steps=1", "mesh.data=-1")
    absurd = command(workdir, cache, config_file, *(f"--config.{key}" for key in keys))[3:]
    capsys.readouterr()
    assert main(absurd) == 3
    assert_names(
        json.loads((workdir / "diverged.json").read_text())["reason"], "update 2", "loss nan"
    )
    code = 3
    while code == 3:
        lines = capsys.readouterr().err.splitlines()
        flags = [line.split()[0] for line in lines if line.startswith("  --config.")]
        code = main([*absurd, *flags])
        moves = [line for line in lines if line.startswith("  mv ")]
        if code == 3:
            subprocess.run(moves[0], shell=True, check=True, cwd=tmp_path)
    assert code == 0
    assert not (workdir / "diverged.json").exists() and len(curve(workdir)) == 12


def test_full_disk_leaves_older_checkpoints_usable(tmp_path, cache, uninterrupted):
    copy_at(4, uninterrupted[0], tmp_path)
    run = start(run_config(log=dict(every_steps=100)), tmp_path, cache)
    with full_disk(), refused("checkpoints: 4"):
        loop.train(run, score=None)
    outcome = loop.train(start(run_config(), tmp_path, cache), score=None)
    assert curve(tmp_path) == curve(uninterrupted[0])
    assert_same_state(outcome.state, uninterrupted[1].state)


def test_changed_training_data_is_refused(tmp_path, cache, uninterrupted):
    copy_at(4, uninterrupted[0], tmp_path)
    run = start(run_config(), tmp_path, cache)
    object.__setattr__(run.corpus.train, "digest", "0123456789abcdef")
    with refused("training data"):
        loop.train(run, score=None)


@pytest.mark.slow
def test_resuming_needs_only_the_workdir(tmp_path, cache):
    """The run of finetuning.init_from and data.tokenizer_model may have been deleted."""
    first, ready = tmp_path / "first", tmp_path / "ready.model"
    loop.train(start(tiny_run(first, steps=4), first, cache), score=None)
    shutil.copy(first / "tokenizer" / "tokenizer.model", ready)
    tuned = dict(finetuning=dict(init_from=str(first)))
    loop.train(start(tiny_run(tmp_path, steps=4, **tuned), tmp_path / "tuned", cache), score=None)
    with_tokenizer = tiny_run(tmp_path, data=dict(tokenizer_model=str(ready), cache=str(cache)))
    digest = prepare_corpus(task_of(with_tokenizer), tmp_path / "given").tokenizers.digest
    shutil.rmtree(first)
    ready.unlink()
    outcome = loop.train(
        start(tiny_run(tmp_path, steps=8, **tuned), tmp_path / "tuned", cache), score=None
    )
    assert outcome.step == 8
    assert prepare_corpus(task_of(with_tokenizer), tmp_path / "given").tokenizers.digest == digest
    with refused("tokenizer"):
        start(tiny_run(tmp_path, steps=4, **tuned), tmp_path / "new", cache)


def test_oversized_program_is_refused_before_training(tmp_path, cache, monkeypatch):
    monkeypatch.setattr("t2t_flax.training.setup.device_memory", lambda: 100_000)
    with refused("train step", "config.data.microbatch_tokens"):
        loop.train(start(tiny_run(tmp_path), tmp_path, cache), score=None)
    assert (
        not (tmp_path / "checkpoints").exists() or not Checkpoints(tmp_path / "checkpoints").steps()
    )


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["packed", pytest.param("buckets", marks=pytest.mark.drill)])
def test_nothing_compiles_after_the_first_update(tmp_path, cache, batching):
    """Covers all shapes of an epoch, evaluations and saves.

    A compilation would look like a hang.
    """
    compiled, warm = [], []
    keys = dict(
        data=dict(batching=batching), eval=dict(every_steps=10, decode_every_steps=10), checkpoint=dict(every_steps=5),
        optimizer=dict(ema_decay=0.9),
    )  # fmt: skip
    run = start(tiny_run(tmp_path, steps=40, **keys), tmp_path, cache)

    def listener(event, duration, **kw):
        if event == "/jax/core/compile/backend_compile_duration" and warm:
            compiled.append(kw)

    def say(text):
        if text.startswith("first update"):
            warm.append(text)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        outcome = loop.train(run, lambda *_: {"valid_bleu": 0.0}, say)
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert outcome.step == 40 and warm and compiled == []
