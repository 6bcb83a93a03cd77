"""A run in a bucket equals the run on local disk.

Killed, resumed, evaluated, with real checkpoints.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.fake_gcs import FakeGcs

KEYS = [
    "--config=configs/toy.py", "--config.data.train=toy:train:300", "--config.data.valid=toy:valid:30",
    "--config.data.test=toy:test:12", "--config.data.vocab_size=300", "--config.data.byte_fallback=false",
    "--config.data.batch_tokens=512", "--config.data.pack_length=64", "--config.data.max_length=64",
    "--config.model.d_model=16", "--config.model.d_ff=32", "--config.model.num_heads=2",
    "--config.model.num_encoder_layers=1", "--config.model.num_decoder_layers=1", "--config.mesh.cpu_devices=1",
    "--config.train.steps=120", "--config.checkpoint.every_steps=40", "--config.eval.every_steps=40",
    "--config.log.every_steps=1", "--config.eval.bootstrap_samples=10", "--config.decode.max_length_offset=5",
]  # fmt: skip


class Commands:
    """Real processes of the command line, against the server."""

    def __init__(self, server: FakeGcs, home: Path):
        self._server, self._home = server, home
        home.mkdir()

    def start(self, *argv: str, launcher: list[str] | None = None) -> subprocess.Popen:
        command = [*(launcher or []), sys.executable, "-m", "t2t_flax", *argv]
        environment = (
            os.environ
            | self._server.environment
            | {"HOME": str(self._home), "JAX_NUM_CPU_DEVICES": "1"}
        )
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *argv: str, launcher: list[str] | None = None) -> str:
        process = self.start(*argv, launcher=launcher)
        try:
            out, _ = process.communicate(timeout=500)
        finally:
            process.terminate()  # the launcher ends its processes
        assert process.returncode == 0, out[-4000:]
        return out


def wait_for(server: FakeGcs, name: str, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 500
    while name not in server.names():
        assert process.poll() is None, process.stdout.read()[-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def curve(lines: str) -> dict[int, float]:
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == sorted(
        {row["step"] for row in rows if "loss" in row}
    )
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


SHORT = [
    "--config.train.steps=4", "--config.checkpoint.every_steps=2", "--config.eval.every_steps=2",
    "--config.data.test=toy:test:4", "--config.decode.beam_size=1", "--config.decode.max_source_length=32",
]  # fmt: skip
SAME = ("split", "data", "scores", "counts", "checkpoint", "hypotheses", "references", "parameters")


def train_on_disk(folder: Path, *keys: str) -> Path:
    """The workdir of the same run on local disk."""
    with FakeGcs() as server:
        Commands(server, folder / "home").run("train", f"--workdir={folder / 'run'}", *KEYS, *keys)
        assert not server.objects, "a run on disk sends no request to the bucket"
    return folder / "run"


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    return train_on_disk(tmp_path_factory.mktemp("disk"))


@pytest.mark.drill
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_and_resumed_run_in_bucket_equals_run_on_disk(tmp_path, on_disk):
    with FakeGcs() as server:
        commands = Commands(server, tmp_path / "home")
        expected = json.loads((on_disk / "eval" / "test-120.json").read_text())

        process = commands.start("train", "--workdir=gs://bucket/run", *KEYS)
        try:
            wait_for(server, "run/checkpoints/40/commit_success.txt", process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert "run/complete.json" not in server.names()
        commands.run("train", "--workdir=gs://bucket/run", *KEYS)

        names = server.names()
        for name in (
            "config.json",
            "complete.json",
            "metrics.jsonl",
            "tokenizer/tokenizer.model",
            "eval/test-120.hyp.txt",
        ):
            assert f"run/{name}" in names
        assert not [name for name in names if ".partial-" in name]
        record = json.loads(server.read("run/eval/test-120.json"))
        assert {k: record[k] for k in SAME} == {k: expected[k] for k in SAME}
        assert (
            server.read("run/eval/test-120.hyp.txt")
            == (on_disk / "eval" / "test-120.hyp.txt").read_bytes()
        )
        losses = curve((on_disk / "metrics.jsonl").read_text())
        assert list(losses) == list(range(1, 121))
        assert curve(server.read("run/metrics.jsonl").decode()) == losses


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_processes_in_bucket_equal_one(tmp_path):
    (tmp_path / "disk").mkdir()
    on_disk = train_on_disk(tmp_path / "disk", *SHORT)
    with FakeGcs() as server:
        pod = Commands(server, tmp_path / "home")
        pod.run(
            "train",
            "--workdir=gs://bucket/run",
            *KEYS,
            *SHORT,
            launcher=["launch/local_pod.sh", "2", "--"],
        )
        names = server.names()
        assert "run/complete.json" in names
        stores = {
            name.split("/")[2]
            for name in names
            if name.startswith("run/data/") and ".plan-" not in name
        }
        assert all(
            kind in {"train", "valid", "test", "tokenizer"}
            for kind in (name.split("-")[0] for name in stores)
        )
        assert not [
            name for name in names if ".parts-" in name or ".survey" in name or ".shared" in name
        ]
        for name in stores:
            disk = {
                path.name: path.read_bytes()
                for path in (on_disk / "data" / name).iterdir()
                if path.name != ".verified"
            }
            assert disk == {file: server.read(f"run/data/{name}/{file}") for file in disk}
        losses, losses_in_bucket = (
            curve((on_disk / "metrics.jsonl").read_text()),
            curve(server.read("run/metrics.jsonl").decode()),
        )
        assert list(losses_in_bucket) == list(losses)
        assert all(abs(losses_in_bucket[k] - losses[k]) < 1e-5 * losses[k] for k in losses)
