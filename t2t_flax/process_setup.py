"""Settings of the process that must be made before JAX starts, and of the processes that it starts."""

import ctypes
import importlib.util
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from t2t_flax.config import Config
from t2t_flax.errors import STOPPED

# glibc's mallopt parameters (malloc.h).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def prepare_process(config: Config) -> list[str]:
    """Applies the config's process settings; returns what was done, in words, for the log.

    Must run before anything touches a JAX device.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    from absl import logging as absl_logging

    absl_logging.set_verbosity(absl_logging.ERROR)
    done, platform = [], likely_platform()
    if platform == "cpu" and config.train.cpu_allocator:
        done.append(keep_freed_memory())
    if platform == "gpu" and config.train.deterministic:
        done.append(use_deterministic_kernels())
    import jax

    if config.mesh.cpu_devices > 1:  # of the CPU alone, so no harm is done where JAX then finds an accelerator
        jax.config.update("jax_num_cpu_devices", config.mesh.cpu_devices)
        if platform == "cpu":
            done.append(f"CPU divided into {config.mesh.cpu_devices} devices")
    if config.train.compile_cache:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(config.train.compile_cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return done


def keep_freed_memory() -> str:
    """Tells glibc to keep freed blocks: XLA allocates its temporaries anew each step, and otherwise pays for fresh
    pages every time. One arena, no mmap, no trimming (-1: the largest int would still trim what is above 2 GiB).
    """
    if not sys.platform.startswith("linux"):
        return "allocator: not glibc, left as it is"
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return "allocator: not glibc, left as it is"
    for name, value in ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 2**28)):
        mallopt(name, value)
    return "allocator: freed memory is kept (train.cpu_allocator)"


def use_deterministic_kernels() -> str:
    """Adds XLA's flag for GPUs to XLA_FLAGS, which it reads when it starts: no atomic adds, and no autotuning, which may choose
    another kernel in another process.
    """
    flag = "--xla_gpu_deterministic_ops=true"
    given = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join([*(word for word in given if not word.startswith(flag.split("=")[0])), flag])
    return "GPU: deterministic kernels alone (train.deterministic)"


ALONE = "T2T_ALONE"
"""Set for a child that is a run of its own, whatever pod or cluster surrounds its parent."""


def child_environment(**more: str) -> dict[str, str]:
    """This process's environment with `more`, and with this package where a child's `python -m` finds it, also where the
    folder in which the child starts holds another one.
    """
    package = str(Path(__file__).parents[1])
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join(dict.fromkeys([package, *map(os.path.abspath, inherited)]))
    return os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"} | more


def run_in_child(*words: str, environment: dict[str, str] | None = None) -> int:
    """The exit code of `python -m t2t_flax WORDS` in a process of its own, with the variables of `environment` besides;
    STOPPED where this one was asked to end, upon which the child is ended too.
    """
    child = subprocess.Popen([sys.executable, "-m", "t2t_flax", *words], env=child_environment(**(environment or {})))
    asked = []

    def stop(number: int, frame: Any) -> None:
        asked.append(number)
        child.terminate()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return STOPPED if asked else code


def likely_platform() -> str:
    """Where JAX will run, judged without starting it: "cpu", "gpu" or "tpu". An accelerator counts where there is a device
    and a backend of JAX for it is installed.
    """
    asked = os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    if asked:
        return "gpu" if asked in ("cuda", "rocm") else asked
    for platform, devices, packages in _ACCELERATORS:
        if any(map(os.path.exists, devices)) and any(map(_installed, packages)):
            return platform
    return "cpu"


# Platform, device files, and the packages one of which JAX needs for them.
_ACCELERATORS = (
    (
        "gpu",
        ("/dev/nvidiactl", "/dev/dxg"),
        ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"),
    ),
    ("tpu", ("/dev/accel0", "/dev/vfio/0"), ("libtpu",)),
    (
        "gpu",
        ("/dev/kfd",),
        ("jax_rocm60_plugin", "jax_rocm7_plugin", "jax_plugins.xla_rocm60", "jax_plugins.xla_rocm7"),
    ),
)


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that holds it
        return False
