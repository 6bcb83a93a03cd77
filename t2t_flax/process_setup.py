"""Process settings that must be applied before JAX starts, and the kind of host."""

import contextlib
import ctypes
import importlib.metadata
import logging
import os
import pkgutil
import platform
import sys
import warnings
from pathlib import Path
from typing import Any

from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.files import expand_home

# glibc's mallopt parameters (malloc.h).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8

_PROGRAM_CACHE: dict[str, str | float] = {
    "jax_compilation_cache_dir": "~/.cache/t2t_flax/jax",
    "jax_persistent_cache_min_compile_time_secs": 0.1,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
"""Settings of the cache of compiled programs.

Environment variables with the same names in capitals override them.
"""


_CPU_INFO = Path("/proc/cpuinfo")
A_WEEK = 7 * 24 * 3600
_COLLECTIVE_TIMEOUT = "--xla_cpu_collective_call_terminate_timeout_seconds"
"""Time after which XLA aborts a process whose CPU devices wait for each other.

The default of 40 s is too short for a busy machine.
"""


def prepare_process(config: Config) -> list[str]:
    """Apply the config's process settings; return a line about each for the log.

    Must run before anything uses a JAX device. If something did and mesh.cpu_devices would change,
    raises RuntimeError after all other settings.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    from absl import logging as absl_logging

    absl_logging.set_verbosity(absl_logging.ERROR)
    cpu, notes = runs_on_cpu(), []
    if cpu:
        notes.append(keep_freed_memory())
    import jax

    if cpu:  # JAX would try each installed backend, and print the errors of those without a device
        jax.config.update("jax_platforms", "cpu")
    # Programs that call oneDNN are not cached: XLA cannot write them.
    warnings.filterwarnings("ignore", message="Error writing persistent compilation cache entry")
    for name, default in _PROGRAM_CACHE.items():
        if os.environ.get(name.upper()):
            continue
        try:
            jax.config.update(
                name, expand_home(default, name.upper()) if isinstance(default, str) else default
            )
        except UserError as error:
            notes.append(f"compiled programs are not kept: {error}")
    if cpu and _COLLECTIVE_TIMEOUT not in (flags := os.environ.get("XLA_FLAGS", "")):
        os.environ["XLA_FLAGS"] = f"{flags} {_COLLECTIVE_TIMEOUT}={A_WEEK}".strip()
    if config.mesh.cpu_devices > 1:  # affects only the CPU: harmless where JAX finds an accelerator
        settings: Any = jax.config
        if settings.jax_num_cpu_devices != config.mesh.cpu_devices:
            jax.config.update("jax_num_cpu_devices", config.mesh.cpu_devices)
        if cpu:
            notes.append(f"CPU divided into {config.mesh.cpu_devices} devices")
    return notes


def keep_freed_memory() -> str:
    """Make glibc keep freed blocks, and return a line for the log.

    XLA allocates its temporaries anew each step, and would pay for fresh pages every time. One
    arena, no mmap, no trimming (-1: the largest int would still trim above 2 GiB).
    """
    if not sys.platform.startswith("linux"):
        return "allocator: not glibc, unchanged"
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return "allocator: not glibc, unchanged"
    for name, value in (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_MAX, 0),
        (_M_TRIM_THRESHOLD, -1),
        (_M_TOP_PAD, 2**28),
    ):
        mallopt(name, value)
    return "allocator: freed memory is kept"


ALONE = "T2T_ALONE"
"""Variable of a child process that runs alone.

Its parent can be one of several processes.
"""
_DEVICES = (
    "nvidia[0-9c]*", "dxg", "nvhost*", "nvmap", "kfd",  # NVIDIA, also on WSL and Tegra; AMD
    "accel[0-9]*", "vfio/[0-9]*", "vfio/noiommu*", "vfio/devices/*",  # TPU
)  # fmt: skip
"""Device files in /dev that every accelerator driver needs.

Other machines have vfio/vfio and accel too.
"""
_KNOWN_BACKENDS = ("xla_cuda", "xla_rocm")
_DEV = Path("/dev")


def runs_on_cpu() -> bool:
    """Return whether JAX will run on the CPU alone, without starting it.

    True if JAX_PLATFORMS says so, or without signs of an accelerator. Signs are a device file, a
    variable that tells libtpu of its TPUs, and a backend of JAX for devices of other makers.
    """
    requested = os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    if requested:
        return requested == "cpu"
    devices = any(True for pattern in _DEVICES for _ in _DEV.glob(pattern))
    return not (devices or "TPU_WORKER_HOSTNAMES" in os.environ or _has_other_backends())


def _has_other_backends() -> bool:
    names = {plugin.name for plugin in importlib.metadata.entry_points(group="jax_plugins")}
    with contextlib.suppress(ImportError):
        import jax_plugins

        names |= {module.name for module in pkgutil.iter_modules(jax_plugins.__path__)}
    return any(not name.startswith(_KNOWN_BACKENDS) for name in names)


def cpu_info() -> str:
    """Return Linux's description of the processor, elsewhere its name.

    The description has a line "flags".
    """
    return _CPU_INFO.read_text() if _CPU_INFO.exists() else platform.processor()
