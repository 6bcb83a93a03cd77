"""Settings of the process that must be made before JAX starts, and of the processes that it starts."""

import ctypes
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
    done = []
    if _cpu_is_likely():
        if config.train.cpu_allocator:
            done.append(keep_freed_memory())
        import jax

        if config.mesh.cpu_devices > 1:
            jax.config.update("jax_num_cpu_devices", config.mesh.cpu_devices)
            done.append(f"CPU divided into {config.mesh.cpu_devices} devices")
    import jax

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


ALONE = "T2T_ALONE"
"""Set for a child that is a run of its own, whatever pod or cluster surrounds its parent."""


def child_environment(**more: str) -> dict[str, str]:
    """This process's environment with `more`, and with this package where a child's `python -m` finds it, also where the
    folder in which the child starts holds another one.
    """
    package = str(Path(__file__).parents[1])
    path = os.pathsep.join(dict.fromkeys([package, *filter(None, [os.environ.get("PYTHONPATH")])]))
    return os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"} | more


def in_child(*words: str) -> int:
    """The exit code of `python -m t2t_flax WORDS` in a process of its own; STOPPED where this one was asked to end, upon
    which the child is ended too.
    """
    child = subprocess.Popen([sys.executable, "-m", "t2t_flax", *words], env=child_environment())
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


def _cpu_is_likely() -> bool:
    """Whether JAX will run on CPU, judged without starting it: no TPU or GPU device file, or CPU asked for."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return platforms.split(",")[0] == "cpu"
    return not any(os.path.exists(path) for path in ("/dev/accel0", "/dev/vfio/0", "/dev/nvidiactl"))
