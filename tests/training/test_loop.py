"""The loop from start to end on a small corpus: resuming, stopping, saving, failing."""

import dataclasses
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath
from full_disk import full_disk
from several import environment
from small import small_config
from tiny_run import start, tiny_run

from t2t_flax import config as config_lib
from t2t_flax.commands.train import adopt_config
from t2t_flax.errors import UserError
from t2t_flax.telemetry.metrics import read_metrics
from t2t_flax.training import loop, resume, step
from t2t_flax.training.checkpoint import Checkpoints
from t2t_flax.training.update_log import NonFiniteLoss

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
    for name in ("loss", "nll", "ppl", "grad_norm", "learning_rate", "target_tokens_per_second", "fill", "source_tokens",
                 "target_tokens", "mfu_hardware_measured", "mfu_useful_measured", "seconds"):  # fmt: skip
        assert name in update
    assert set(update["seconds"]) >= {"compile", "data", "step"}
    assert 0 < update["mfu_useful_measured"] <= update["mfu_hardware_measured"]
    assert not any(name.endswith("data_sheet") for name in update)  # no data sheet for a CPU: nothing is guessed
    valid = [m for m in lines if "valid_nll" in m]
    assert [m["step"] for m in valid] == [2, 4]
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


def test_a_loss_that_is_not_finite_stops_the_run_and_is_never_saved(tmp_path, cache, monkeypatch):
    real = step.loss_sums

    def explode(config, model, params, batch, noise, shards):
        loss, sums = real(config, model, params, batch, noise, shards)
        return jax.numpy.where(noise.key[0] == step.noise_key(config.seed.dropout, 5)[0], jax.numpy.nan, loss), sums

    monkeypatch.setattr(step, "loss_sums", explode)
    config = tiny_run(tmp_path, checkpoint=dict(every_steps=2))
    with pytest.raises(NonFiniteLoss, match="update 6: loss nan"):
        loop.train(start(config, tmp_path, cache), score=None)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=9)
    assert checkpoints.steps() == [2, 4]
    monkeypatch.undo()
    outcome = loop.train(start(config, tmp_path, cache), score=None)
    assert outcome.step == 12


def test_a_full_disk_leaves_the_older_checkpoints_usable(tmp_path, cache):
    run = start(tiny_run(tmp_path, steps=4), tmp_path, cache)
    loop.train(run, score=None)
    run = start(tiny_run(tmp_path, steps=8, log=dict(every_steps=100)), tmp_path, cache)
    with (
        full_disk(),
        pytest.raises(UserError, match="could not write a checkpoint: .* Checkpoints that are whole: 4. Make room"),
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


def test_a_program_too_large_is_refused_before_the_first_update(tmp_path, cache, monkeypatch):
    from t2t_flax.telemetry import memory

    monkeypatch.setattr(memory, "device_memory", lambda: 100_000)
    with pytest.raises(UserError, match="the train step for .* GiB are there. Lower config.data.microbatch_tokens"):
        loop.train(start(tiny_run(tmp_path), tmp_path, cache), score=None)
    assert not (tmp_path / "checkpoints").exists() or not Checkpoints(tmp_path / "checkpoints").steps()


@pytest.mark.parametrize("batching", ["packed", pytest.param("buckets", marks=pytest.mark.slow)])
def test_nothing_compiles_after_the_first_updates(tmp_path, cache, batching):
    """All shapes of an epoch, evaluations and saves included."""
    compiled = []
    run = start(
        tiny_run(
            tmp_path, steps=40, data=dict(batching=batching), eval=dict(every_steps=10), checkpoint=dict(every_steps=5)
        ),
        tmp_path,
        cache,
    )
    warm = []

    def listener(event, duration, **kw):
        if event == "/jax/core/compile/backend_compile_duration" and warm:
            compiled.append(kw)

    def bleu(*_):
        warm.append(True)
        return 0.0

    run = dataclasses.replace(
        run, config=dataclasses.replace(run.config, eval=dataclasses.replace(run.config.eval, bleu_every_steps=10))
    )
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        outcome = loop.train(run, bleu)
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
