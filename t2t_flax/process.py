"""Settings of the process that must be made before JAX starts."""

import ctypes
import logging
import os
import sys

from t2t_flax.config import Config

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


def _cpu_is_likely() -> bool:
    """Whether JAX will run on CPU, judged without starting it: no TPU or GPU device file, or CPU asked for."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return platforms.split(",")[0] == "cpu"
    return not any(os.path.exists(path) for path in ("/dev/accel0", "/dev/vfio/0", "/dev/nvidiactl"))
