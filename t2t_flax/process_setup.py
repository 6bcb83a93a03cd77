"""Process settings that must be applied before JAX starts, and child processes."""

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import logging
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from t2t_flax.config import Config

# glibc's mallopt parameters (malloc.h).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8

_PROGRAM_CACHE: dict[str, Any] = {
    "jax_compilation_cache_dir": os.path.expanduser("~/.cache/t2t_flax/jax"),
    "jax_persistent_cache_min_compile_time_secs": 0.1,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
"""Where compiled programs are kept across runs, and which; an environment variable, the name in capitals, counts instead."""


def prepare_process(config: Config) -> list[str]:
    """Applies the config's process settings; returns a line about each for the log.

    Must run before anything uses a JAX device; raises RuntimeError, last of all, if something did and mesh.cpu_devices would
    change.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    from absl import logging as absl_logging

    absl_logging.set_verbosity(absl_logging.ERROR)
    notes = []
    if likely_platform() == "cpu":
        notes.append(keep_freed_memory())
    import jax

    leave_out_absent_accelerators()
    for name, default in _PROGRAM_CACHE.items():
        if not os.environ.get(name.upper()):
            jax.config.update(name, default)
    if config.mesh.cpu_devices > 1:  # of the CPU only: harmless where JAX finds an accelerator
        if jax.config.jax_num_cpu_devices != config.mesh.cpu_devices:  # type: ignore[attr-defined]
            jax.config.update("jax_num_cpu_devices", config.mesh.cpu_devices)
        if likely_platform() == "cpu":
            notes.append(f"CPU divided into {config.mesh.cpu_devices} devices")
    return notes


def keep_freed_memory() -> str:
    """Makes glibc keep freed blocks: XLA allocates its temporaries anew each step, and would pay for fresh pages every
    time. One arena, no mmap, no trimming (-1: the largest int would still trim above 2 GiB).
    """
    if not sys.platform.startswith("linux"):
        return "allocator: not glibc, unchanged"
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return "allocator: not glibc, unchanged"
    for name, value in ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 2**28)):
        mallopt(name, value)
    return "allocator: freed memory is kept"


ALONE = "T2T_ALONE"
"""Set for a child that is a run of its own, even if its parent is one of several processes."""
RUNS_FOLDER = "T2T_RUNS_FOLDER"
"""Set for a child that trains one of several runs that belong together: the folder of all of them."""


def child_environment(**more: str) -> dict[str, str]:
    """This process's environment with `more`, in which `python -m t2t_flax` finds this package even if the working folder
    holds another copy.
    """
    package = str(Path(__file__).parents[1])
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join(dict.fromkeys([package, *map(os.path.abspath, inherited)]))
    return os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"} | more


@contextlib.contextmanager
def on_stop_signal(callback: Callable[[], None]) -> Iterator[None]:
    """Calls `callback` at SIGTERM and SIGINT within the block; the earlier handlers come back after it."""
    signals = (signal.SIGTERM, signal.SIGINT)
    handlers = {number: signal.signal(number, lambda *_: callback()) for number in signals}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


# Platform, device files, and the JAX backends of which one must be installed. Beside the driver's own files: WSL's, and
# those of NVIDIA's boards (Tegra). /dev/vfio/vfio and the folder /dev/accel are on machines without a TPU too.
_ACCELERATORS = (
    (
        "gpu",
        ("dev/nvidia[0-9c]*", "dev/dxg", "dev/nvhost*", "dev/nvmap"),
        ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"),
    ),
    ("tpu", ("dev/accel[0-9]*", "dev/vfio/[0-9]*", "dev/vfio/noiommu*", "dev/vfio/devices/*"), ("libtpu",)),
    (
        "gpu",
        ("dev/kfd", "dev/dxg"),
        ("jax_rocm60_plugin", "jax_rocm7_plugin", "jax_plugins.xla_rocm60", "jax_plugins.xla_rocm7"),
    ),
)
_ROOT = Path("/")
_TPU_VARIABLES = ("TPU_", "CLOUD_TPU_", "COLAB_TPU_", "MEGASCALE_", "JAX_FORCE_TPU_INIT", "PJRT_")
_WITHOUT_TPU = {
    "TPU_LIBRARY_PATH", "TPU_SKIP_MDS_QUERY", "TPU_LOG_DIR", "TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL"
}  # fmt: skip
"""Variables of logs, and those that importing JAX and libtpu sets on any machine."""


def likely_platform() -> str:
    """Where JAX will run, without starting it: "cpu", "gpu" or "tpu". An accelerator counts if its device file exists
    and a JAX backend for it is installed.
    """
    requested = os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    if requested:
        return "gpu" if requested in ("cuda", "rocm") else requested
    for platform, devices, packages in _ACCELERATORS:
        if _any_file(devices) and any(map(_installed, packages)):
            return platform
    return "cpu"


def leave_out_absent_accelerators() -> None:
    """Has JAX use the CPU alone where there is no sign of an accelerator: it would try each backend that is installed, and
    print the errors of those that find no device. A sign is a device file, without which no driver works, a variable of TPU
    machines, pods and containers, or a backend of another maker. Where JAX_PLATFORMS is set, JAX chooses as always.
    """
    import jax

    chosen = jax.config.jax_platforms or os.environ.get("JAX_PLATFORMS")  # type: ignore[attr-defined]
    variables = {name for name in os.environ if name.startswith(_TPU_VARIABLES)} - _WITHOUT_TPU
    devices = any(_any_file(files) for _, files, _ in _ACCELERATORS)
    if not (chosen or variables or devices or _has_other_backends()):
        jax.config.update("jax_platforms", "cpu")


def _any_file(patterns: tuple[str, ...]) -> bool:
    return any(True for pattern in patterns for _ in _ROOT.glob(pattern))


def _has_other_backends() -> bool:
    """Whether JAX will find plugins of other devices than NVIDIA's and AMD's."""
    try:
        import jax_plugins

        names = {module.name for module in pkgutil.iter_modules(jax_plugins.__path__)}
    except ImportError:
        names = set()
    names |= {plugin.name for plugin in importlib.metadata.entry_points(group="jax_plugins")}
    return any(not name.startswith(("xla_cuda", "xla_rocm")) for name in names)


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of its parent package
        return False
