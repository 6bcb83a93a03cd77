"""Process settings and child processes."""

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys

import jax
import pytest
from helpers.refusals import assert_names

from t2t_flax import process_setup as process
from t2t_flax.config import Config
from t2t_flax.extensions.shared.processes import child_environment
from t2t_flax.version import __version__


def test_child_runs_this_copy_of_the_package(tmp_path):
    """Its working directory may be a checkout of another version."""
    (tmp_path / "t2t_flax").mkdir()
    (tmp_path / "t2t_flax" / "__init__.py").touch()
    (tmp_path / "t2t_flax" / "version.py").write_text("__version__ = 'another'")
    child = subprocess.run(
        [sys.executable, "-c", "from t2t_flax.version import __version__; print(__version__)"],
        cwd=tmp_path, env=child_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert child.stdout.strip() == __version__, child.stdout + child.stderr


TIMEOUT = "--xla_cpu_collective_call_terminate_timeout_seconds"
LATE = """
import sys, time
import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from t2t_flax.config import default_config
from t2t_flax.process_setup import prepare_process

prepare_process(default_config())

def late(i):
    time.sleep(20 * (i == 0))
    return np.float32(i)

def total():
    index = jax.lax.axis_index("x").astype(np.float32)
    return jax.lax.psum(jax.pure_callback(late, jax.ShapeDtypeStruct((), np.float32), index), "x")

mesh = jax.sharding.Mesh(np.array(jax.devices()), "x")
print(jax.jit(jax.shard_map(total, mesh=mesh, in_specs=(), out_specs=P(), check_vma=False))())
"""


@pytest.mark.slow
def test_xla_obeys_the_time_for_which_cpu_devices_wait_for_each_other():
    """XLA aborts the process after its default of 40 s, and here after 1 s."""
    flags = f"--xla_cpu_collective_call_warn_stuck_timeout_seconds=1 {TIMEOUT}=1"
    variables = child_environment(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="2", XLA_FLAGS=flags)
    child = subprocess.run(
        [sys.executable, "-c", LATE], env=variables, capture_output=True, text=True, timeout=900
    )
    assert child.returncode == -signal.SIGABRT and not child.stdout, child.stderr[-2000:]
    assert_names(child.stderr, "Termination timeout")


def test_without_a_home_folder_compiled_programs_are_not_kept(no_home, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    before = jax.config.jax_compilation_cache_dir
    notes = process.prepare_process(Config())
    assert jax.config.jax_compilation_cache_dir == before
    assert_names("\n".join(notes), "JAX_COMPILATION_CACHE_DIR", "HOME")


@pytest.mark.parametrize(
    ("given", "expected"), [("", f"{TIMEOUT}=604800"), (f"{TIMEOUT}=9", f"{TIMEOUT}=9")]
)
def test_the_user_may_say_how_long_cpu_devices_wait_for_each_other(monkeypatch, given, expected):
    monkeypatch.setenv("XLA_FLAGS", given)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    process.prepare_process(Config())
    assert os.environ["XLA_FLAGS"] == expected


@pytest.mark.parametrize(
    ("files", "variables", "cpu"),
    [
        pytest.param([], {}, True, id="a bare machine"),
        pytest.param(
            ["vfio/vfio", "accel/accel0", "dri/card0"], {}, True, id="a laptop with an NPU"
        ),
        pytest.param(
            [], {"TPU_SKIP_MDS_QUERY": "1", "TPU_LIBRARY_PATH": "/a"}, True, id="JAX was imported"
        ),
        pytest.param([], {"JAX_PLATFORMS": "cuda,cpu"}, False, id="the user's choice"),
        pytest.param(
            ["accel0"], {"JAX_PLATFORMS": "cpu"}, True, id="a TPU that the user does not want"
        ),
        pytest.param(["accel0", "accel1"], {}, False, id="v2 to v4"),
        pytest.param(["vfio/vfio", "vfio/0"], {}, False, id="v5e, v6e"),
        pytest.param(["vfio/noiommu-0"], {}, False, id="without an IOMMU"),
        pytest.param([], {"TPU_WORKER_HOSTNAMES": "a,b"}, False, id="a pod of GKE"),
        pytest.param(["nvidia0", "nvidiactl"], {}, False, id="NVIDIA"),
        pytest.param(["dxg"], {}, False, id="WSL"),
        pytest.param(["kfd"], {}, False, id="AMD"),
    ],
)
def test_accelerators_are_left_out_only_without_any_sign_of_one(
    monkeypatch, tmp_path, files, variables, cpu
):
    """A machine with an accelerator is never forced onto its CPU."""
    for path in files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.delenv("TPU_WORKER_HOSTNAMES", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "")
    for name, value in ({"JAX_PLATFORMS": ""} | variables).items():
        monkeypatch.setenv(name, value)
    chosen = {}
    monkeypatch.setattr(jax.config, "update", chosen.__setitem__)
    monkeypatch.setattr(process, "_DEV", tmp_path)
    notes = process.prepare_process(Config())
    assert chosen.get("jax_platforms") == ("cpu" if cpu else None) and bool(notes) == cpu
    monkeypatch.setattr(process, "_has_other_backends", lambda: True)
    assert not process.runs_on_cpu() or "JAX_PLATFORMS" in variables


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra plan)"
)
def test_command_is_quiet_where_libtpu_is_installed_without_a_tpu(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if not process.runs_on_cpu():
        pytest.skip("this machine may have an accelerator")
    words = ["explain", "--config=configs/toy.py", "--config.model.attention_kernel=auto"]
    script = (
        "import sys; from t2t_flax.__main__ import main; code = main(sys.argv[1:]); import jax; "
        "assert jax.default_backend() == 'cpu'; sys.exit(code)"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, *words],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (child.returncode, child.stderr) == (0, "")


def test_cpu_devices_apply_on_every_platform(monkeypatch):
    updates = {}
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    monkeypatch.setattr(process, "runs_on_cpu", lambda: False)
    config = dataclasses.replace(Config(), mesh=dataclasses.replace(Config().mesh, cpu_devices=3))
    assert process.prepare_process(config) == [] and updates["jax_num_cpu_devices"] == 3
