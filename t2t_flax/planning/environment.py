"""The environment in which JAX can compile for devices that are not there, and whether the compilers are installed.

`plan` compiles in a child process, because JAX and XLA read these variables once, when they start.
"""

import importlib.util
import os

from t2t_flax.errors import UserError, install_hint
from t2t_flax.planning.topology import Topology

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
    """Whether libtpu is installed."""
    return importlib.util.find_spec("libtpu") is not None or bool(os.environ.get("TPU_LIBRARY_PATH"))


def has_gpu_compiler() -> bool:
    """Whether JAX's CUDA plugin is installed, for CUDA 12 or 13."""
    if importlib.util.find_spec("jax_plugins") is None:
        return False
    return any(importlib.util.find_spec(f"jax_plugins.xla_cuda{version}") for version in (12, 13))
