"""Puts a question to the compiler in a process of its own (see `worker`), and says what is missing where it cannot."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.errors import UserError, install_hint
from t2t_flax.planning.topology import Topology
from t2t_flax.process_setup import child_environment

_TAIL = 15


def ask(
    config: Config,
    topology: Topology,
    vocab: tuple[int, int],
    parts: tuple[str, ...],
    *,
    store: str = "",
    rows: int = 0,
) -> dict[str, Any]:
    """The worker's answer. Raises UserError for a mesh that does not fit, and where libtpu is not installed."""
    if topology.platform == "tpu" and not has_libtpu():
        raise UserError(
            f"--topology={topology.name} needs the TPU compiler, which is not installed: pip install '{requirement()}' "
            f"(about 700 MB; no TPU needed), or {install_hint('plan')}."
        )
    request = {
        "config": config_lib.to_json(config),
        "topology": topology.name,
        "vocab": list(vocab),
        "parts": list(parts if topology.platform != "gpu" else ()),
        "store": store,
        "rows": rows,
    }
    with tempfile.TemporaryDirectory(prefix="t2t-flax-plan-") as folder:
        request["answer"] = str(Path(folder) / "answer.json")
        command = [sys.executable, "-m", "t2t_flax.planning.worker"]
        done = subprocess.run(
            command, input=json.dumps(request), env=environment(topology), capture_output=True, text=True
        )
        answer = Path(request["answer"])
        found = json.loads(answer.read_text()) if answer.exists() else {"failure": _tail(done)}
    if "user_error" in found:
        raise UserError(f"{topology.name}: {found['user_error']}")
    if "failure" in found:
        raise RuntimeError(f"the compilation for {topology.name} failed:\n{found['failure']}")
    return found


def environment(topology: Topology) -> dict[str, str]:
    """The worker's: JAX runs on the CPU, asks no metadata server about a TPU, and keeps no compiled program."""
    dropped = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    kept = {k: v for k, v in child_environment().items() if k not in dropped}
    devices = topology.devices if topology.platform != "tpu" else 1
    return kept | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "TPU_SKIP_MDS_QUERY": "1",
        # libtpu looks for these on a TPU host; here there is none.
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_LOG_DIR": "disabled",
        # Nothing runs on a TPU: another plan, or a run on this host's TPU, need not keep the compiler from being loaded.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    }


def has_libtpu() -> bool:
    """Whether the TPU compiler is installed."""
    return importlib.util.find_spec("libtpu") is not None or bool(os.environ.get("TPU_LIBRARY_PATH"))


def requirement() -> str:
    """The libtpu that the installed jax was made for, in pip's notation."""
    from importlib.metadata import requires

    asked = [r.split(";")[0].strip() for r in requires("jax") or () if r.startswith("libtpu")]
    return asked[0] if asked else "libtpu"


def _tail(done: subprocess.CompletedProcess) -> str:
    lines = (done.stdout + done.stderr).splitlines()[-_TAIL:]
    return "\n".join([f"the process ended with code {done.returncode}", *lines])
