"""The wheel and the sdist hold every file of the package; the wheel works without a checkout."""

import importlib.metadata
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers.processes import environment
from helpers.refusals import assert_names

from t2t_flax.registry import COMMANDS, load_extensions
from t2t_flax.version import __version__

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
ROOT = Path(__file__).parents[1]


def package_files() -> set[str]:
    files = (path for path in (ROOT / "t2t_flax").rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}


def run(*words: str | Path, cwd: Path, stdin: str = "") -> str:
    env = {
        key: value
        for key, value in environment().items()
        if key not in ("PYTHONPATH", "PYTHONHOME")
    }
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=env, input=stdin, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


OPTIONAL = "array_record,matplotlib,optuna,pyarrow,tensorflow_datasets"
PROGRAM = """
import contextlib, importlib.util, sys
absent, *names = sys.argv[1:]
sys.modules.update(dict.fromkeys(absent.split(",")))  # importing one of them fails
import t2t_flax
from t2t_flax.__main__ import main

print(t2t_flax.__file__)
for name in names:
    with contextlib.suppress(SystemExit):
        main([name, "--help"])
main(["explain", "--presets"])
with contextlib.redirect_stderr(sys.stdout), contextlib.suppress(SystemExit):
    main(["explain", "--config=configs/toy.py"])
if importlib.util.find_spec("fastapi"):
    import t2t_flax.extensions.serving.app
sys.exit(main(["translate", "--workdir=pretrained:toy"]))
"""
"""One process for all of it, for each imports JAX."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist that it was built from, of a copy of the files that a build needs."""
    # `build` could be a folder of this name.
    pytest.importorskip("build.env", reason="needs the package build")
    if int(importlib.metadata.version("setuptools").partition(".")[0]) < 77:
        pytest.skip("needs setuptools>=77, as pyproject.toml says")
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in (
        "pyproject.toml",
        "requirements-run.txt",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "t2t_flax",
        "configs",
    ):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source)
    for path in (source, *source.rglob("*")):  # of a checkout without the right to write
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", output, cwd=source)
    return next(output.glob("*.whl")), next(output.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of programs of an environment with the wheel.

    Its dependencies are those of this interpreter.
    """
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        built[0],
        cwd=folder,
    )
    (site,) = folder.glob("lib/python*/site-packages")
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "dependencies.pth").write_text("\n".join(others) + "\n")
    return folder / "bin"


def test_every_file_of_the_package_is_in_both(built):
    wheel, sdist = built
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in inside if ".dist-info/" not in name} == package_files()
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert package_files() | {"requirements-run.txt", "LICENSE", "configs/toy.py"} <= names
    assert not any(name.startswith("tests/") for name in names)
    assert wheel.name == f"t2t_flax-{__version__}-py3-none-any.whl"


def test_the_commands_work_without_a_checkout(installed, tmp_path):
    """Translating and serving need no optional package of another part."""
    program = installed / "t2t-flax"
    assert run(program, "--version", cwd=tmp_path) == f"t2t_flax {__version__}\n"
    assert (
        run(installed / "python", "-m", "t2t_flax", "--version", cwd=tmp_path)
        == f"t2t_flax {__version__}\n"
    )
    load_extensions()
    names = [*COMMANDS]
    words = [installed / "python", "-c", PROGRAM, OPTIONAL, *names]
    output = run(*words, cwd=tmp_path, stdin="It is late.\n")
    assert output.startswith(str(installed.parent)) and output.endswith("\nEs ist spät.\n")
    assert [name for name in names if f"usage: python -m t2t_flax {name}" not in output] == []
    assert_names(output, "aiayn_big", "configs/toy.py", "--config=toy")


def test_a_preset_trains_without_a_checkout(installed, tmp_path):
    keys = {
        "data.train": "toy:train:300", "data.valid": "toy:valid:10", "data.test": "toy:test:4", "data.vocab_size": 300,
        "model.d_model": 16, "model.d_ff": 32, "model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "train.steps": 2, "checkpoint.every_steps": 2, "eval.every_steps": 0,
        "decode.max_length_offset": 4, "mesh.cpu_devices": 1, "eval.bootstrap_samples": 10,
    }  # fmt: skip
    overrides = [f"--config.{key}={value}" for key, value in keys.items()]
    output = run(
        installed / "t2t-flax", "train", "--config=toy", "--workdir=run", *overrides, cwd=tmp_path
    )
    assert "record: run/eval/test-2.json" in output
    assert sorted(os.listdir(tmp_path)) == ["run"]
