"""Real processes that train together, with CPU devices and collectives over the loopback."""

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from t2t_flax.training.progress import read_metrics

ROOT = Path(__file__).parents[2]
KEYS = {
    "model.d_model": 16, "model.d_ff": 32, "model.num_heads": 4, "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1, "model.dropout": 0.1, "model.pad_vocab_to_multiple": 8, "data.vocab_size": 300, "data.byte_fallback": False,
    "data.max_length": 64, "data.pack_length": 64, "data.batch_tokens": 512, "data.microbatch_tokens": 256,
    "data.train": "toy:train:400", "data.valid": "toy:valid:24", "data.test": "toy:test:8",
    "optimizer.warmup_steps": 10, "train.steps": 20, "checkpoint.every_steps": 5, "checkpoint.keep_last": 2,
    "checkpoint.average_last": 0, "eval.every_steps": 10, "eval.bootstrap_samples": 0, "log.every_steps": 1,
    "decode.max_length_offset": 3, "decode.max_source_length": 32, "decode.beam_size": 2, "decode.batch_size": 4,
    "distributed.initialization_timeout": 300, "distributed.heartbeat_timeout": 10,
}  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    """The environment of a user, without the tests' simulated devices."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_NUM_CPU", "T2T_"))}
    return (
        inherited
        | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
        | more
    )


def is_alive(pid: int) -> bool:
    """Whether a process runs; zombies do not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition, what, seconds: float = 200.0) -> None:
    """what: said if the condition does not become true in time.

    Text, or a function that returns it.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, (
            f"not within {seconds} s: {what() if callable(what) else what}"
        )
        time.sleep(0.02)


def command(workdir, cache, name: str = "train", **keys) -> list[str]:
    """`python -m t2t_flax train ...`; keys such as `mesh_fsdp=2`."""
    overrides = (
        KEYS
        | {"data.cache": str(cache)}
        | {key.replace("_", ".", 1): value for key, value in keys.items()}
    )
    config = [f"--config={ROOT / 'configs' / 'toy.py'}"] if name == "train" else []
    overrides = (
        overrides
        if name == "train"
        else {k: v for k, v in overrides.items() if k in keys or k.startswith("mesh.")}
    )
    flags = [f"--config.{key}={value}" for key, value in overrides.items()]
    return [sys.executable, "-m", "t2t_flax", name, *config, f"--workdir={workdir}", *flags]


_PORTS = 1000
_ports = itertools.count(random.randrange(_PORTS))


def free_port() -> int:
    """A port that nothing takes before a process of the test does.

    Below those that the kernel assigns, from a range of this worker of the tests, each in its turn.
    """
    first = 20_000 + _PORTS * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 12)
    while True:
        port = first + next(_ports) % _PORTS
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Processes:
    """Context of `count` processes of a command, each with its own log file in `logs`.

    All are killed at the end.
    """

    def __init__(self, logs: Path, count: int, arguments: list[str] | list[list[str]], **env: str):
        logs.mkdir(parents=True, exist_ok=True)
        address = f"127.0.0.1:{free_port()}"
        self.logs = [logs / f"{i}-{time.monotonic_ns()}.log" for i in range(count)]
        self.all, self.tees = [], []
        for i in range(count):
            variables = dict(
                T2T_NUM_PROCESSES=str(count), T2T_PROCESS_ID=str(i), JAX_COORDINATOR_ADDRESS=address
            )
            own_arguments = arguments if isinstance(arguments[0], str) else arguments[i]
            self.logs[i].touch()  # a test may read it before `tee` has started
            # Through a separate process, so that a file size limit does not apply to the log.
            log = subprocess.Popen(
                ["tee", str(self.logs[i])], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
            self.tees.append(log)
            self.all.append(
                subprocess.Popen(
                    own_arguments,
                    env=environment(**variables, **env),
                    stdout=log.stdin,
                    stderr=subprocess.STDOUT,
                )
            )
            log.stdin.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.all:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        for log in self.tees:
            log.wait()

    def output(self, i: int) -> str:
        return self.logs[i].read_text()

    def wait(self, seconds: float = 500.0) -> list[int]:
        """Returns the exit codes. Fails with all outputs if a process takes longer."""
        deadline = time.monotonic() + seconds
        return [self.wait_for_end(i, deadline - time.monotonic()) for i in range(len(self.all))]

    def wait_for_end(self, i: int, seconds: float = 300.0) -> int:
        """The exit code of one process, whose output is then complete.

        Fails with all outputs if it takes longer.
        """
        try:
            self.all[i].wait(max(0.1, seconds))
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"process {i} is still running after {seconds:.0f} s\n{self.outputs()}"
            ) from None
        self.tees[i].wait(120.0)
        return self.all[i].returncode

    def outputs(self) -> str:
        return "\n".join(
            f"--- process {i}: {p.poll()}\n{self.output(i)[-3000:]}" for i, p in enumerate(self.all)
        )

    def wait_for_step(self, workdir: Path, step: int, seconds: float = 400.0) -> None:
        """Waits until the run has logged this update."""
        self.wait_for(
            lambda: any(line["step"] >= step for line in read_metrics(workdir)),
            f"update {step}",
            seconds,
        )

    def wait_for_output(self, i: int, text: str, seconds: float = 400.0) -> None:
        self.wait_for(lambda: text in self.output(i), text, seconds)

    def wait_for(self, condition, event: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert all(p.poll() is None for p in self.all), (
                f"ended before {event}\n{self.outputs()}"
            )
            assert time.monotonic() < deadline, f"no {event} after {seconds} s\n{self.outputs()}"
            time.sleep(0.05)


def losses(workdir) -> dict[int, float]:
    """The loss of each update."""
    return {line["step"]: line["loss"] for line in read_metrics(workdir) if "loss" in line}


def evaluations(workdir) -> dict[int, float]:
    """The validation loss of each evaluation."""
    return {
        line["step"]: line["valid_nll"] for line in read_metrics(workdir) if "valid_nll" in line
    }


def record(workdir, name: str) -> dict:
    """A record, and its hypotheses as `text`."""
    folder = Path(workdir) / "eval"
    return json.loads((folder / f"{name}.json").read_text()) | {
        "text": (folder / f"{name}.hyp.txt").read_text()
    }


def checkpoints(workdir) -> list[int]:
    """Steps that have a checkpoint."""
    return sorted(
        int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()
    )


def resume(tmp_path, cache, count, **keys) -> None:
    """Resumes the run in `tmp_path / "run"` and trains to its end."""
    with Processes(tmp_path / "logs", count, command(tmp_path / "run", cache, **keys)) as processes:
        assert processes.wait() == [0] * count, processes.outputs()
    assert "resuming" in processes.output(0)


def note(text: str) -> None:
    """Prints a measurement and appends it to the file in T2T_FLAX_FAULT_LOG."""
    print(text)
    log = os.environ.get("T2T_FLAX_FAULT_LOG")
    if log:
        with open(log, "a") as file:
            file.write(text + "\n")
