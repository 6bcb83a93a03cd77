"""Process settings and child processes."""

import dataclasses
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from t2t_flax import process_setup as process
from t2t_flax.config import Config
from t2t_flax.version import __version__


def test_child_runs_this_copy_of_the_package(tmp_path):
    """Its working directory may be a checkout of another version."""
    (tmp_path / "t2t_flax").mkdir()
    (tmp_path / "t2t_flax" / "__init__.py").touch()
    (tmp_path / "t2t_flax" / "version.py").write_text("__version__ = 'another'")
    child = subprocess.run(
        [sys.executable, "-c", "from t2t_flax.version import __version__; print(__version__)"],
        cwd=tmp_path, env=process.child_environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert child.stdout.strip() == __version__, child.stdout + child.stderr


@pytest.mark.parametrize(
    ("devices", "packages", "platforms", "expected"),
    [
        ([], [], "", "cpu"),
        (["dev/nvidiactl"], [], "", "cpu"),  # a GPU, and the jaxlib of the CPU
        (["dev/nvidiactl"], ["jax_cuda12_plugin"], "", "gpu"),
        (["dev/nvidiactl"], ["jax_cuda13_plugin"], "", "gpu"),
        ([], ["jax_cuda12_plugin"], "", "cpu"),
        (["dev/accel0"], ["libtpu"], "", "tpu"),
        (["dev/nvidiactl"], ["libtpu"], "", "cpu"),
        (["dev/accel0"], ["libtpu"], "cpu", "cpu"),
        ([], [], "cuda,cpu", "gpu"),
    ],
)
def test_platform_needs_a_device_and_a_backend(monkeypatch, tmp_path, devices, packages, platforms, expected):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    machine(tmp_path, *devices)
    monkeypatch.setattr(process, "_ROOT", tmp_path)
    monkeypatch.setattr(process, "_installed", packages.__contains__)
    assert process.likely_platform() == expected


def machine(root: Path, *files: str) -> Path:
    """A file tree with these files."""
    for path in files:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


@pytest.fixture
def without_tpu_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith(process._TPU_VARIABLES)]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("files", "variables", "left_out"),
    [
        pytest.param([], {}, True, id="a bare machine"),
        pytest.param(["dev/vfio/vfio", "dev/accel/accel0", "dev/dri/card0"], {}, True, id="a laptop with an NPU"),
        pytest.param([], {"TPU_SKIP_MDS_QUERY": "1", "TPU_LIBRARY_PATH": "/a"}, True, id="JAX was imported"),
        pytest.param([], {"JAX_PLATFORMS": "cuda,cpu"}, False, id="the user's choice"),
        pytest.param(["dev/accel0", "dev/accel1"], {}, False, id="v2 to v4"),
        pytest.param(["dev/vfio/vfio", "dev/vfio/0"], {}, False, id="v5e, v6e"),
        pytest.param(["dev/vfio/noiommu-0"], {}, False, id="without an IOMMU"),
        pytest.param([], {"TPU_WORKER_HOSTNAMES": "a,b"}, False, id="a pod of GKE"),
        pytest.param([], {"MEGASCALE_COORDINATOR_ADDRESS": "a:1"}, False, id="several slices"),
        pytest.param([], {"JAX_FORCE_TPU_INIT": "1"}, False, id="asked for"),
        pytest.param(["dev/nvidia0", "dev/nvidiactl"], {}, False, id="NVIDIA"),
        pytest.param(["dev/dxg"], {}, False, id="WSL"),
        pytest.param(["dev/kfd"], {}, False, id="AMD"),
    ],
)
def test_accelerators_are_left_out_only_without_any_sign_of_one(
    monkeypatch, without_tpu_variables, tmp_path, files, variables, left_out
):
    """A machine with an accelerator is never forced onto its CPU."""
    for name, value in ({"JAX_PLATFORMS": ""} | variables).items():
        monkeypatch.setenv(name, value)
    chosen = {}
    monkeypatch.setattr(jax.config, "update", chosen.__setitem__)
    monkeypatch.setattr(type(jax.config), "jax_platforms", None)
    monkeypatch.setattr(process, "_ROOT", machine(tmp_path, *files))
    process.leave_out_absent_accelerators()
    assert chosen == ({"jax_platforms": "cpu"} if left_out else {})
    monkeypatch.setattr(process, "_has_other_backends", lambda: True)
    chosen.clear()
    process.leave_out_absent_accelerators()
    assert chosen == {}


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra plan)")
def test_command_is_quiet_where_libtpu_is_installed_without_a_tpu(without_tpu_variables):
    if any(process._any_file(files) for _, files, _ in process._ACCELERATORS):
        pytest.skip("this machine may have an accelerator")
    words = ["explain", "--config=configs/toy.py", "--config.model.attention_kernel=auto"]
    environment = {name: value for name, value in process.child_environment().items() if name != "JAX_PLATFORMS"}
    script = (
        "import sys; from t2t_flax.__main__ import main; code = main(sys.argv[1:]); import jax; "
        "assert jax.default_backend() == 'cpu'; sys.exit(code)"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, *words], env=environment, capture_output=True, text=True, timeout=300
    )
    assert (child.returncode, child.stderr) == (0, "")


def test_cpu_devices_apply_on_every_platform(monkeypatch):
    updates = {}
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    monkeypatch.setattr(process, "likely_platform", lambda: "tpu")
    config = dataclasses.replace(Config(), mesh=dataclasses.replace(Config().mesh, cpu_devices=3))
    assert process.prepare_process(config) == [] and updates["jax_num_cpu_devices"] == 3
