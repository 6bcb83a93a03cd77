"""Real sweeps of short trainings: killed and resumed, and stacked."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t2t_flax.__main__ import main
from t2t_flax.extensions.sweeps.folder import Folder, read_sweep

ROOT = Path(__file__).parents[3]
TOY = str(ROOT / "configs" / "toy.py")


def sweep(*arguments: str) -> int:
    return main(["sweep", *arguments])


SMALL = {
    "data.train": "toy:train:300", "data.valid": "toy:valid:20", "data.test": "toy:test:20", "data.vocab_size": "300",
    "data.batch_tokens": "256", "model.d_model": "32", "model.d_ff": "32", "model.num_heads": "2", "mesh.cpu_devices": "1",
    "model.num_encoder_layers": "1", "model.num_decoder_layers": "1", "train.steps": "30", "eval.every_steps": "10",
    "checkpoint.every_steps": "10", "log.every_steps": "5", "decode.max_length_offset": "5",
    "decode.beam_size": "2",
}  # fmt: skip


@pytest.mark.drill
@pytest.mark.slow
def test_repeatedly_killed_sweep_equals_an_undisturbed_one(tmp_path, capsys):
    """kill -9 of the worker, kill -9 of a training, then SIGTERM."""
    arguments = [f"--config={TOY}", *(f"--config.{k}={v}" for k, v in SMALL.items()), "--set", "model.dropout=0.0,0.2"]
    undisturbed, killed = tmp_path / "whole", tmp_path / "killed"
    command = [sys.executable, "-m", "t2t_flax", "sweep", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([*command, f"--workdir={undisturbed}"], check=True, env=env, timeout=280)
    folder = Folder(killed)
    kinds = [("worker", signal.SIGKILL), ("training", signal.SIGKILL), ("worker", signal.SIGTERM)]
    for i, (victim, number) in enumerate(kinds):
        worker = subprocess.Popen([*command, f"--workdir={killed}"], env=env, stdout=subprocess.PIPE, text=True)
        count = metrics(killed)
        wait_for(lambda count=count: metrics(killed) > count + 1)
        if victim == "worker":
            worker.send_signal(number)
            code = worker.wait(60)
            assert code == (75 if number == signal.SIGTERM else -9), worker.stdout.read()
            wait_for(lambda: not any(folder.holder(n) for n in read_sweep(killed)["trials"]))
        else:
            os.kill(training_of(worker.pid), number)
            count = metrics(killed)
            time.sleep(1.0)
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)
        assert i < 3
    subprocess.run([*command, f"--workdir={killed}"], check=True, env=env, timeout=200)
    for name in read_sweep(undisturbed)["trials"]:
        records = [
            json.loads((Folder(f).workdir(name) / "eval" / "test-30.json").read_text()) for f in (undisturbed, killed)
        ]
        assert records[0]["scores"] == records[1]["scores"]
        curves = [(Folder(f).workdir(name) / "metrics.jsonl").read_text().splitlines() for f in (undisturbed, killed)]
        losses = [
            [(line["step"], line["loss"]) for line in map(json.loads, curve) if "loss" in line] for curve in curves
        ]
        assert losses[0] == losses[1]
    capsys.readouterr()
    assert sweep(f"--workdir={killed}", "--report") == 0
    assert "2 complete" not in capsys.readouterr().out  # one line per row, each with one trial
    assert (killed / "report" / "table.csv").read_text().count("1 complete") == 2


@pytest.mark.drill
@pytest.mark.slow
def test_stacked_sweep_equals_separate_trainings(tmp_path):
    """Three rows in one program, one of which diverges: only that one fails."""
    arguments = [
        f"--config={TOY}",
        *(f"--config.{k}={v}" for k, v in SMALL.items()),
        "--set",
        "optimizer.peak_lr=0.001,0.003,1e30",
    ]
    command = [sys.executable, "-m", "t2t_flax", "sweep", *arguments, "--retries=0"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    curves = {}
    for name, more in (("apart", []), ("together", ["--stack=3"])):
        result = subprocess.run(
            [*command, f"--workdir={tmp_path / name}", *more], env=env, capture_output=True, text=True, timeout=280
        )
        assert result.returncode == 0 and "loss nan" in result.stdout, result.stdout + result.stderr
        folder = Folder(tmp_path / name)
        assert {n: folder.state(n) for n in read_sweep(folder.path)["trials"]} == {
            "peak_lr=0.001,seed=0": "complete", "peak_lr=0.003,seed=0": "complete", "peak_lr=1e30,seed=0": "failed",
        }  # fmt: skip
        lines = [
            json.loads(line)
            for n in ("peak_lr=0.001,seed=0", "peak_lr=0.003,seed=0")
            for line in (folder.workdir(n) / "metrics.jsonl").read_text().splitlines()
        ]
        curves[name] = [(line["step"], line.get("loss"), line.get("valid_nll")) for line in lines]
    assert "stacked with 2 others" in result.stdout
    for apart, together in zip(curves["apart"], curves["together"], strict=True):
        assert apart[0] == together[0]
        assert all(a == b or abs(a - b) < 1e-4 for a, b in zip(apart[1:], together[1:], strict=True))


def metrics(path: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in path.glob("trials/*/metrics.jsonl"))


def training_of(worker: int) -> int:
    children = subprocess.run(["pgrep", "-P", str(worker)], capture_output=True, text=True).stdout.split()
    return int(children[0])


def wait_for(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
