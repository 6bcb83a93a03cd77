"""Process settings and child processes."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time

import jax
import pytest

from t2t_flax import process_setup as process
from t2t_flax.config import Config, Train
from t2t_flax.errors import STOPPED
from t2t_flax.version import __version__

CHILD = """
import os, signal, sys, time
def stop(number, frame):
    open(sys.argv[1] + ".stopped", "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
if sys.argv[2:]:
    sys.exit(int(sys.argv[2]))
time.sleep(60)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A stand-in for this package in a child process: waits for a signal, or exits with the given code."""
    (tmp_path / "t2t_flax").mkdir()
    (tmp_path / "t2t_flax" / "__init__.py").touch()
    (tmp_path / "t2t_flax" / "__main__.py").write_text(CHILD)
    monkeypatch.setattr(process, "child_environment", lambda: os.environ | {"PYTHONPATH": str(tmp_path)})
    monkeypatch.chdir(tmp_path)  # where `python -m` looks first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_is_passed_on_to_the_child(package, tmp_path, number):
    pid = tmp_path / "pid"

    def send_signal():
        while signal.getsignal(number) == before or not (pid.exists() and pid.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    sender = threading.Thread(target=send_signal, daemon=True)
    sender.start()
    assert process.run_in_child(str(pid)) == STOPPED
    sender.join(10)
    assert (tmp_path / "pid.stopped").exists() and signal.getsignal(number) == before
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_child_runs_this_copy_of_the_package(tmp_path):
    """Its working directory may be a checkout of another version."""
    (tmp_path / "t2t_flax").mkdir()
    (tmp_path / "t2t_flax" / "__init__.py").touch()
    (tmp_path / "t2t_flax" / "version.py").write_text("__version__ = 'another'")
    child = subprocess.run(
        [sys.executable, "-c", "from t2t_flax.version import __version__; print(__version__)"],
        cwd=tmp_path, env=process.child_environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert child.stdout.strip() == __version__, child.stdout + child.stderr


@pytest.mark.parametrize("code", [0, 2])
def test_exit_code_of_the_child_is_returned(package, tmp_path, code):
    assert process.run_in_child(str(tmp_path / "pid"), str(code)) == code


@pytest.mark.parametrize(
    ("platforms", "requested"), [("cuda", True), ("cuda,cpu", True), ("cpu", False), ("tpu", False)]
)
@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_kernels_are_set_on_gpu_only(monkeypatch, platforms, requested, deterministic):
    """train.deterministic: other flags in XLA_FLAGS are kept, a contradicting one is replaced."""
    flags = "--xla_gpu_deterministic_ops=false --xla_some_flag=1"
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setenv("XLA_FLAGS", flags)
    config = Config(train=Train(deterministic=deterministic, compile_cache="", cpu_allocator=False))
    messages = process.prepare_process(config)
    expected = requested and deterministic
    assert os.environ["XLA_FLAGS"] == ("--xla_some_flag=1 --xla_gpu_deterministic_ops=true" if expected else flags)
    assert any("deterministic" in text for text in messages) == expected


@pytest.mark.parametrize(
    ("devices", "packages", "platforms", "expected"),
    [
        ([], [], "", "cpu"),
        (["/dev/nvidiactl"], [], "", "cpu"),  # a GPU, and the jaxlib of the CPU
        (["/dev/nvidiactl"], ["jax_cuda12_plugin"], "", "gpu"),
        (["/dev/nvidiactl"], ["jax_cuda13_plugin"], "", "gpu"),
        ([], ["jax_cuda12_plugin"], "", "cpu"),
        (["/dev/accel0"], ["libtpu"], "", "tpu"),
        (["/dev/nvidiactl"], ["libtpu"], "", "cpu"),
        (["/dev/accel0"], ["libtpu"], "cpu", "cpu"),
        ([], [], "cuda,cpu", "gpu"),
    ],
)
def test_platform_needs_a_device_and_a_backend(monkeypatch, devices, packages, platforms, expected):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(process.os.path, "exists", devices.__contains__)
    monkeypatch.setattr(process, "_installed", packages.__contains__)
    assert process.likely_platform() == expected


def test_cpu_devices_apply_on_every_platform(monkeypatch):
    updates = {}
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    monkeypatch.setattr(process, "likely_platform", lambda: "tpu")
    config = dataclasses.replace(Config(), mesh=dataclasses.replace(Config().mesh, cpu_devices=3))
    assert process.prepare_process(config) == [] and updates["jax_num_cpu_devices"] == 3
