"""The loop from start to end on a small corpus: resuming, stopping, saving, failing."""

import dataclasses
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
from etils import epath
from helpers.configs import small_config
from helpers.full_disk import full_disk
from helpers.processes import environment
from helpers.runs import start, tiny_run

from t2t_flax import config as config_lib
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.errors import UserError
from t2t_flax.monitoring.metrics_writer import read_metrics
from t2t_flax.training import loop, resume
from t2t_flax.training import train_step as step
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.config_changes import changes_in
from t2t_flax.training.divergence import NonFiniteUpdate
from t2t_flax.training.workdir import adopt_config

ROOT = Path(__file__).parents[2]


def curve(workdir) -> list[tuple[int, float, float]]:
    return [(m["step"], m["loss"], m["grad_norm"]) for m in read_metrics(workdir) if "loss" in m]


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory, cache):
    workdir = tmp_path_factory.mktemp("run")
    outcome = loop.train(start(tiny_run(workdir), workdir, cache), score=None)
    assert outcome.reason == "steps" and outcome.step == 12
    return curve(workdir), outcome.state


def test_every_update_is_logged_once_with_what_was_promised(uninterrupted, tmp_path, cache):
    losses, _ = uninterrupted
    assert [s for s, _, _ in losses] == list(range(1, 13))
    loop.train(start(tiny_run(tmp_path, steps=4, eval=dict(every_steps=2)), tmp_path, cache), score=None)
    lines = read_metrics(tmp_path)
    update = next(m for m in lines if m["step"] == 3)
    for name in ("loss", "nll", "ppl", "accuracy", "grad_norm", "learning_rate", "target_tokens_per_second", "fill", "source_tokens",
                 "target_tokens", "mfu_hardware_measured", "mfu_useful_measured", "seconds"):  # fmt: skip
        assert name in update
    assert set(update["seconds"]) >= {"compile", "data", "step"}
    assert 0 < update["mfu_useful_measured"] <= update["mfu_hardware_measured"]
    assert not any(name.endswith("data_sheet") for name in update)  # no data sheet for a CPU: nothing is guessed
    valid = [m for m in lines if "valid_nll" in m]
    assert [m["step"] for m in valid] == [2, 4]
    assert 0 < valid[0]["valid_accuracy"] < 1
    assert valid[0]["valid_ppl"] == pytest.approx(math.exp(valid[0]["valid_nll"]))


def test_resuming_continues_bit_for_bit(tmp_path, cache, uninterrupted):
    """Stopped after update 8 by its step count, continued to 12: the same losses and the same state, to the bit."""
    losses, state = uninterrupted
    loop.train(start(tiny_run(tmp_path, steps=8), tmp_path, cache), score=None)
    outcome = loop.train(start(tiny_run(tmp_path, steps=12), tmp_path, cache), score=None)
    assert curve(tmp_path) == losses
    for a, b in zip(jax.tree.leaves(outcome.state), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)


def command(workdir, cache, config_file, *more):
    return [
        sys.executable, "-m", "t2t_flax", "train", f"--config={config_file}", f"--workdir={workdir}",
        f"--config.data.cache={cache}", f"--config.train.compile_cache={cache / 'programs'}", *more,
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


def wait_for_step(workdir, at_least, process, seconds=120):
    for _ in range(seconds * 20):
        lines = read_metrics(workdir)
        if lines and lines[-1]["step"] >= at_least:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("the run did not get there")


@pytest.mark.slow
def test_kill_9_then_the_same_command_goes_on_bit_for_bit(tmp_path, cache, config_file):
    """Killed twice at whatever update it is at; the loss curve is that of a run that nobody killed."""
    steps = "--config.train.steps=120"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = dict(env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert subprocess.run(command(whole, cache, config_file, steps), **options).returncode == 0
    for at in (20, 60):
        process = subprocess.Popen(command(killed, cache, config_file, steps), **options)
        wait_for_step(killed, at, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    last = subprocess.run(command(killed, cache, config_file, steps), **options)
    assert last.returncode == 0 and "resuming" in last.stdout, last.stdout
    assert curve(killed) == curve(whole)
    assert len(curve(whole)) == 120


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, cache, config_file, number):
    steps = "--config.train.steps=100000"
    options = dict(env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    process = subprocess.Popen(command(tmp_path / "run", cache, config_file, steps), **options)
    wait_for_step(tmp_path / "run", 5, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    stopped = int(output.split("after update ")[-1].split(",")[0])
    assert "give the same command again to go on" in output
    assert Checkpoints(tmp_path / "run" / "checkpoints", keep_last=9).steps()[-1] == stopped


def broken_at(*updates):
    """A loss that is NaN at these updates."""
    real = step.loss_sums

    def explode(config, model, params, batch, noise, shards):
        loss, sums = real(config, model, params, batch, noise, shards)
        keys = jax.numpy.stack([step.noise_key(config.seed.dropout, update - 1) for update in updates])
        return jax.numpy.where((noise.key == keys).all(1).any(), jax.numpy.nan, loss), sums

    return explode


def test_a_loss_that_is_not_finite_stops_the_run_and_is_never_saved(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(step, "loss_sums", broken_at(6))
    config = tiny_run(tmp_path, checkpoint=dict(every_steps=2))
    with pytest.raises(NonFiniteUpdate, match="update 6: loss nan"):
        loop.train(start(config, tmp_path, cache), score=None)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=9)
    assert checkpoints.steps() == [2, 4]
    monkeypatch.undo()
    outcome = loop.train(start(config, tmp_path, cache), score=None)
    assert outcome.step == 12


def test_skipped_updates_are_counted_and_a_resumed_run_is_bit_for_bit_the_same(tmp_path, cache, monkeypatch):
    """Update 5 is not finite: batches, dropout and rates of the others are as if it had been."""
    monkeypatch.setattr(step, "loss_sums", broken_at(5, 8))
    keys = dict(train=dict(non_finite="skip", max_skipped_updates=1))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    outcome = loop.train(start(tiny_run(whole, **keys), whole, cache), score=None)
    loop.train(start(tiny_run(cut, steps=6, **keys), cut, cache), score=None)
    resumed = loop.train(start(tiny_run(cut, **keys), cut, cache), score=None)
    assert curve(cut) == curve(whole) and [s for s, _, _ in curve(whole)] == [1, 2, 3, 4, 6, 7, 9, 10, 11, 12]
    for a, b in zip(jax.tree.leaves(outcome.state), jax.tree.leaves(resumed.state), strict=True):
        np.testing.assert_array_equal(a, b)
    lines = read_metrics(cut)
    assert [(m["step"], m["skipped"].split(",")[0]) for m in lines if "skipped" in m] == [
        (n, f"update {n}: loss nan") for n in (5, 8)
    ]
    assert {m["step"]: m["skipped_updates"] for m in lines}[12] == 2
    rates = {m["step"]: m["learning_rate"] for m in lines if "learning_rate" in m}
    assert rates[12] == pytest.approx(float(step.learning_rate_schedule(small_config().optimizer, 16)(12)))


def test_more_skipped_updates_in_a_row_than_allowed_stop_the_run(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(step, "loss_sums", broken_at(5, 6, 7))
    config = tiny_run(tmp_path, train=dict(non_finite="skip", max_skipped_updates=2))
    with pytest.raises(NonFiniteUpdate, match="update 7: .* more than config.train.max_skipped_updates = 2 in a row"):
        loop.train(start(config, tmp_path, cache), score=None)
    assert Checkpoints(tmp_path / "checkpoints", keep_last=9).steps() == [4]


def test_a_change_of_optimization_on_resume_is_noted(tmp_path, cache):
    """In metrics.jsonl once, however often the run is resumed there, and in the meta of every later checkpoint."""
    loop.train(start(tiny_run(tmp_path, steps=4), tmp_path, cache), score=None)
    changed = dict(optimizer=dict(lr_scale=0.5, max_grad_norm=1.0))
    expected = {"optimizer.lr_scale": [1.0, 0.5], "optimizer.max_grad_norm": [0.0, 1.0]}
    said = []
    loop.train(start(tiny_run(tmp_path, steps=6, **changed), tmp_path, cache), score=None, say=said.append)
    assert "optimizer.lr_scale 1.0 -> 0.5" in said[0] and "after update 4" in said[0]
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=9)
    assert (
        changes_in(checkpoints.meta(6)) == [{"step": 4, "changed": expected}] and changes_in(checkpoints.meta(4)) == []
    )
    (tmp_path / "checkpoints" / "6").rename(tmp_path / "away")
    loop.train(start(tiny_run(tmp_path, steps=8, **changed), tmp_path, cache), score=None)
    lines = read_metrics(tmp_path)
    assert [(m["step"], m["config_changed"]) for m in lines if "config_changed" in m] == [(4, expected)]
    assert [s for s, _, _ in curve(tmp_path)] == list(range(1, 9))
    rates = {m["step"]: m["learning_rate"] for m in lines if "learning_rate" in m}
    assert rates[5] == pytest.approx(0.5 * rates[4] * 5 / 4)


@pytest.mark.slow
def test_a_run_that_diverges_is_brought_back_by_its_own_message(tmp_path, cache, config_file):
    """Word for word: the flags that it names, then the command that takes a bad checkpoint away."""
    workdir = tmp_path / "run"
    absurd = command(
        workdir, cache, config_file, "--config.optimizer.lr_scale=1e30", "--config.checkpoint.every_steps=1"
    )
    options = dict(env=environment(), cwd=tmp_path, capture_output=True, text=True)
    done = subprocess.run(absurd, **options)
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert "update 2: loss nan" in json.loads((workdir / "diverged.json").read_text())["reason"]
    again = subprocess.run(absurd, **options)  # the same numbers: nothing was saved of the update
    assert again.returncode == 3 and "update 2: loss nan" in again.stderr
    while done.returncode == 3:
        print(done.stderr)
        lines = done.stderr.splitlines()
        flags = [line.split()[0] for line in lines if line.startswith("  --config.")]
        done = subprocess.run([*absurd, *flags], **options)
        moves = [line for line in lines if line.startswith("  mv ")]
        if done.returncode == 3:
            subprocess.run(moves[0], shell=True, check=True)
    assert done.returncode == 0, done.stderr
    assert not (workdir / "diverged.json").exists() and len(curve(workdir)) == 12


def test_a_full_disk_leaves_the_older_checkpoints_usable(tmp_path, cache):
    run = start(tiny_run(tmp_path, steps=4), tmp_path, cache)
    loop.train(run, score=None)
    run = start(tiny_run(tmp_path, steps=8, log=dict(every_steps=100)), tmp_path, cache)
    with (
        full_disk(),
        pytest.raises(
            UserError, match="could not write a checkpoint: .* Checkpoints that are whole: 4. Free disk space"
        ),
    ):
        loop.train(run, score=None)
    outcome = loop.train(start(tiny_run(tmp_path, steps=8), tmp_path, cache), score=None)
    assert outcome.step == 8 and [s for s, _, _ in curve(tmp_path)] == list(range(1, 9))


def test_changed_data_is_refused(tmp_path, cache):
    loop.train(start(tiny_run(tmp_path, steps=4), tmp_path, cache), score=None)
    run = start(tiny_run(tmp_path, steps=8), tmp_path, cache)
    object.__setattr__(run.corpus.train, "digest", "0123456789abcdef")
    with pytest.raises(UserError, match="was made with other training data"):
        loop.train(run, score=None)


def test_a_finished_run_is_fine_tuned_on_other_data(tmp_path, cache):
    first, second = tmp_path / "first", tmp_path / "second"
    outcome = loop.train(start(tiny_run(first, steps=4), first, cache), score=None)
    config = tiny_run(second, steps=4, train=dict(init_from=str(first)), data=dict(train="toy:train:200"))
    run = start(config, second, cache)
    params = resume.params_of_finished(run, epath.Path(first))
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(outcome.state.params), strict=True):
        np.testing.assert_array_equal(a, b)
    loop.train(run, score=None)
    assert curve(second)[0][1] < curve(first)[0][1]
    other = tiny_run(tmp_path / "third", train=dict(init_from=str(first)), model=dict(d_model=32))
    with pytest.raises(UserError, match="config.train.init_from = .*: 16 there, 32 here"):
        loop.train(start(other, tmp_path / "third", cache), score=None)


def test_a_run_that_goes_on_needs_its_own_folder_alone(tmp_path, cache):
    """The run that it started from, and the ready tokenizer that it was given, may be gone."""
    first, ready = tmp_path / "first", tmp_path / "ready.model"
    loop.train(start(tiny_run(first, steps=4), first, cache), score=None)
    shutil.copy(first / "tokenizer" / "tokenizer.model", ready)
    tuned = dict(train=dict(init_from=str(first)))
    loop.train(start(tiny_run(tmp_path, steps=4, **tuned), tmp_path / "tuned", cache), score=None)
    given = tiny_run(tmp_path, data=dict(tokenizer_model=str(ready), cache=str(cache)))
    digest = prepare_corpus(given, tmp_path / "given").tokenizers.digest
    shutil.rmtree(first)
    ready.unlink()
    outcome = loop.train(start(tiny_run(tmp_path, steps=8, **tuned), tmp_path / "tuned", cache), score=None)
    assert outcome.step == 8
    assert prepare_corpus(given, tmp_path / "given").tokenizers.digest == digest
    with pytest.raises(UserError, match="tokenizer"):
        start(tiny_run(tmp_path, steps=4, **tuned), tmp_path / "new", cache)


def test_a_program_too_large_is_refused_before_the_first_update(tmp_path, cache, monkeypatch):
    from t2t_flax.monitoring import memory

    monkeypatch.setattr(memory, "device_memory", lambda: 100_000)
    with pytest.raises(UserError, match="the train step for .* GiB are there. Lower config.data.microbatch_tokens"):
        loop.train(start(tiny_run(tmp_path), tmp_path, cache), score=None)
    assert not (tmp_path / "checkpoints").exists() or not Checkpoints(tmp_path / "checkpoints").steps()


@pytest.mark.parametrize("batching", ["packed", pytest.param("buckets", marks=pytest.mark.slow)])
def test_nothing_compiles_after_the_first_update(tmp_path, cache, batching):
    """All shapes of an epoch, evaluations and saves included: a compilation would look as if the run hung."""
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
        outcome = loop.train(run, lambda *_: 0.0, say)
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert outcome.step == 40 and warm and compiled == []


def test_complete_and_config_files(tmp_path):
    stored = tiny_run(tmp_path)
    workdir = epath.Path(tmp_path)
    adopt_config(workdir, small_config(model=dict(dropout=0.3)))
    adopt_config(workdir, stored)  # no checkpoint yet: a corrected command takes its place
    assert config_lib.from_json((tmp_path / "config.json").read_text()) == stored
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    adopt_config(workdir, dataclasses.replace(stored, train=dataclasses.replace(stored.train, steps=99)))
    assert json.loads((tmp_path / "config.json").read_text())["train"]["steps"] == 99
    with pytest.raises(UserError, match="model.dropout: 0.1 in the workdir, 0.2 now"):
        adopt_config(workdir, small_config(model=dict(dropout=0.2)))


def test_checkpoint_and_log_keys(tmp_path, cache):
    """keep_last, log.every_steps, log.tensorboard and log.profile_steps."""
    config = tiny_run(
        tmp_path,
        checkpoint=dict(every_steps=2, keep_last=3, keep_best=0),
        log=dict(every_steps=5, tensorboard=True, profile_steps=(2, 3)),
    )
    loop.train(start(config, tmp_path, cache), score=None)
    assert Checkpoints(tmp_path / "checkpoints", keep_last=9).steps() == [8, 10, 12]
    assert [s for s, _, _ in curve(tmp_path)] == [5, 10]
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
