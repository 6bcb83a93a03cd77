"""The child process in which `plan` compiles for devices that are not there, and whether the compilers are installed.

It is a process of its own because JAX and XLA read their environment once, when they start.
"""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from t2t_flax.config import Config, to_json
from t2t_flax.errors import STOPPED, USER_ERROR, UserError, install_hint
from t2t_flax.extensions.planning.topology import Topology
from t2t_flax.json_file import parse_json
from t2t_flax.process_setup import child_environment, on_stop_signal

_CHILD = "T2T_FLAX_PLAN_CHILD"


def compiler_environment(machines: list[Topology]) -> dict[str, str]:
    """Variables of the child: JAX runs on the CPU, which the largest `cpu:N` of the machines divides into devices."""
    return {
        _CHILD: "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(max([m.devices for m in machines if m.platform == "cpu"], default=1)),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "false",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        # XLA would otherwise time kernels on a GPU to choose among them.
        "XLA_FLAGS": "--xla_gpu_autotune_level=0",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # of the versions of CUDA's libraries, for which it asks a driver
        "TPU_SKIP_MDS_QUERY": "1",
        # libtpu expects these of a TPU host.
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_LOG_DIR": "disabled",
        # Without it one process of a machine can load libtpu, which is right only where it uses a TPU.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    }


def in_compiler_environment() -> bool:
    """Whether this process was started with `compiler_environment`."""
    return os.environ.get(_CHILD) == "1"


def plan_in_child(config: Config, machine: Topology, *flags: str) -> dict[str, Any]:
    """The record that `plan --json` writes for one machine. Raises UserError where a compiler is missing or the mesh does
    not fit, RuntimeError where the compilation fails.
    """
    require_compilers([machine])
    with tempfile.TemporaryDirectory(prefix="t2t-flax-plan-") as folder:
        config_file, record = Path(folder, "config.json"), Path(folder, "plan.json")
        config_file.write_text(to_json(config))
        words = [f"--config={config_file}", f"--topology={machine.name}", f"--json={record}", *flags]
        result = subprocess.run(
            [sys.executable, "-m", "t2t_flax", "plan", *words],
            env=child_environment(**compiler_environment([machine])),
            capture_output=True,
            text=True,
        )
        if result.returncode == USER_ERROR:
            raise UserError(result.stderr.strip().removeprefix("t2t_flax plan: "))
        if result.returncode:
            last_lines = "\n".join(result.stderr.splitlines()[-15:])
            raise RuntimeError(
                f"the compilation for {machine.name} exited with code {result.returncode}:\n{last_lines}"
            )
        return parse_json(record.read_text())[0]


def require_compilers(machines: list[Topology]) -> None:
    """Raises UserError, with the command that installs it, where the compiler of a machine is missing."""
    for machine in machines:
        if machine.platform == "tpu" and not has_tpu_compiler():
            raise UserError(
                f"--topology={machine.name} needs the TPU compiler (0.7 GB, works without a TPU), which is not "
                f"installed: {install_hint('plan')}."
            )
        if machine.platform == "gpu" and not has_gpu_compiler():
            raise UserError(
                f"--topology={machine.name} needs XLA's GPU compiler (2.5 GB, works without a GPU), which is not "
                f"installed: {install_hint('plan-gpu')}."
            )


def has_tpu_compiler() -> bool:
    """Whether libtpu is installed, also where this process leaves it out, see `runs_on_cpu`."""
    return importlib.machinery.PathFinder.find_spec("libtpu") is not None or bool(os.environ.get("TPU_LIBRARY_PATH"))


def has_gpu_compiler() -> bool:
    """Whether JAX's CUDA plugin is installed, for CUDA 12 or 13."""
    if importlib.util.find_spec("jax_plugins") is None:
        return False
    return any(importlib.util.find_spec(f"jax_plugins.xla_cuda{version}") for version in (12, 13))


def run_in_child(*words: str, environment: dict[str, str] | None = None) -> int:
    """Runs `python -m t2t_flax WORDS` in a child process, with `environment` added to its variables; returns its exit code,
    or STOPPED if a signal ended this process, which is passed on to the child.
    """
    child = subprocess.Popen([sys.executable, "-m", "t2t_flax", *words], env=child_environment(**(environment or {})))
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        child.terminate()

    with on_stop_signal(stop):
        code = child.wait()
    return STOPPED if stopped.is_set() else code
