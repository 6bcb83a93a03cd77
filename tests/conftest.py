"""Eight simulated CPU devices for all tests, and real data from T2T_FLAX_DATA."""

import contextlib
import gc
import importlib.metadata
import os
import re
import shutil
import signal
import sys
import tempfile
import uuid
from pathlib import Path

import hypothesis
import psutil
import pytest

# Property-based tests draw the same examples in every run; `HYPOTHESIS_PROFILE=explore` draws new
# ones.
hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# The models are tiny, so compilation takes most of the time. Without its newer emitters, where they
# can be disabled, XLA compiles faster.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
# As `process_setup` does, so that programs of commands are also found in the cache.
os.environ["XLA_FLAGS"] = "--xla_cpu_collective_call_terminate_timeout_seconds=604800"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] += (
        " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    )
# Many tests compile the same small programs, so the workers share a compilation cache. It is
# deleted at the end, unless JAX_COMPILATION_CACHE_DIR names one to keep.
_OWN_CACHE = not os.environ.get("JAX_COMPILATION_CACHE_DIR")
if _OWN_CACHE:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="t2t-flax-tests-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Processes inherit ignored and blocked signals: a shell ignores SIGINT and SIGQUIT for what it
# starts with `&`, nohup SIGHUP. The tests send them to what they start, which therefore has to
# start without. A handler is not inherited, and ignores them here.
signal.pthread_sigmask(signal.SIG_SETMASK, [])
for _name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "CHLD"):
    _number = getattr(signal, f"SIG{_name}")
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _name == "INT" else lambda *_: None)
# As `t2t_flax.__main__` does: modules and traced programs are many objects that stay.
gc.set_threshold(100_000)


_SESSION = "PYTEST_SESSION"
"""Marks the processes that the tests of this process start, and those that they start in turn."""
os.environ[_SESSION] = uuid.uuid4().hex


def started_processes() -> set[psutil.Process]:
    """Return running processes that the tests started, also orphans and in other environments."""
    found = set(psutil.Process().children(recursive=True))
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_SESSION) == os.environ[_SESSION]:
                found.add(process)
    return found


def multiprocessing_servers() -> set[psutil.Process]:
    """Return servers of the package multiprocessing, which end with their parent."""
    found = set()
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if {"resource_tracker", "forkserver"} & set(
                re.findall(r"multiprocessing\.(\w+)", " ".join(process.cmdline()))
            ):
                found.add(process)
    return found


@pytest.fixture(scope="module", autouse=True)
def no_process_stays():
    """Kills the processes that the tests of a file leave behind, and fails.

    They take the processor and ports from others.
    """
    before = started_processes()
    yield
    _, left = psutil.wait_procs(
        started_processes() - before - multiprocessing_servers(), timeout=100.0
    )
    found = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            test = process.environ().get("PYTEST_CURRENT_TEST", "a test")
            found.append(f"{test} left {' '.join(process.cmdline())} behind")
            process.kill()
    assert not found, "\n".join(found)


@pytest.fixture(scope="session", autouse=True)
def devices_of_runs():
    """Gives runs of this process as few devices as their mesh needs, with `mesh.data = -1`.

    Programs for all eight take twice as long to compile, and their checkpoints to save.
    """
    import jax

    from t2t_flax.distributed import mesh as mesh_lib

    make_mesh = mesh_lib.make_mesh

    def make(config, devices=None):
        if devices is None:
            devices = jax.devices()
            if config.data == -1:
                devices = devices[: max(1, config.slices) * config.fsdp * config.tensor]
        return make_mesh(config, devices)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mesh_lib, "make_mesh", make)
        yield


@pytest.fixture(scope="module", autouse=True)
def bounded_programs():
    """Drops compiled programs after a file once this worker is large: workers grew to 5 GB."""
    yield
    if psutil.Process().memory_info().rss > 2 * 2**30 and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with multi30k/ and newstest/.

    Tests that need it skip where T2T_FLAX_DATA does not name it.
    """
    folder = os.environ.get("T2T_FLAX_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("T2T_FLAX_DATA names no data folder")
    return Path(folder)


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """A folder of token stores shared by tests."""
    return tmp_path_factory.mktemp("cache")


def pytest_collection_modifyitems(items) -> None:
    """Start the longest files first, so that at the end all workers have something to do."""
    longest = (
        "tests/documentation/",
        "tests/multiprocess/",
        "tests/training/test_changed_keys.py",
        "tests/extensions/selftest/test_faults.py",
        "tests/extensions/bulk_translation/test_shared_translation.py",
        "tests/extensions/storage/test_train_gcs.py",
        "tests/training/test_train_step.py",
        "tests/decoding/test_translator.py",
        "tests/test_api.py",
        "tests/training/",
        "tests/evaluation/",
    )
    items.sort(key=lambda item: [not item.nodeid.startswith(name) for name in longest])


def pytest_unconfigure(config) -> None:
    """Deletes the session's own cache of programs."""
    if _OWN_CACHE:
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture
def no_home(monkeypatch, tmp_path):
    """A user that the system does not know, as in a container, in an empty folder."""
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)

    def unknown(user: int):
        raise KeyError(user)

    monkeypatch.setattr("pwd.getpwuid", unknown)


@pytest.fixture
def exits(monkeypatch):
    """Exit codes with which supervisors of `helpers.supervised_threads` ended threads as processes.

    They exchange messages every hundredth of a second.
    """
    from helpers.supervised_threads import Exit

    from t2t_flax.distributed import supervisor, watcher

    codes = []

    def end(code):
        codes.append(code)
        raise Exit

    monkeypatch.setattr(supervisor, "end", end)
    monkeypatch.setattr(watcher, "end", end)
    monkeypatch.setattr(watcher, "INTERVAL", 0.01)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    return codes
