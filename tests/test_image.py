"""The Dockerfile: its files exist, its steps do what they say, and the launchers' command lines work in the image."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) in their order, continued lines joined, without comments."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    return [tuple(line.split(maxsplit=1)) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def values(name: str) -> list[str]:
    return [text for instruction, text in instructions() if instruction == name]


def sent_to_docker() -> set[str]:
    """The names at the top of the repository that .dockerignore lets through."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


def test_copied_files_exist_and_are_sent():
    copied = {name for text in values("COPY") for name in text.split()[:-1]}
    assert {"pyproject.toml", "requirements-run.txt", "t2t_flax", "configs"} <= copied
    for name in copied:
        assert (ROOT / name).exists(), name
    assert copied == sent_to_docker()


@pytest.fixture
def install(tmp_path):
    """Runs the installing step for an accelerator with a `pip` that prints its arguments."""
    (step,) = (text for text in values("RUN") if "ACCELERATOR" in text)
    command = re.sub(r"--mount=\S+\s*", "", step).replace("/wheels/", f"{tmp_path}/wheels/")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "t2t_flax-1.0-py3-none-any.whl").touch()
    (tmp_path / "pip").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "pip").chmod(0o755)

    def run(accelerator):
        (extras,) = (text.partition("=")[2] for text in values("ARG") if text.startswith("EXTRAS"))
        env = {"ACCELERATOR": accelerator, "EXTRAS": extras, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True)

    return run


@pytest.mark.parametrize("accelerator", ["cpu", "cuda", "tpu"])
def test_each_accelerator_installs_extras_that_exist(install, accelerator):
    done = install(accelerator)
    assert done.returncode == 0, done.stderr
    wheel, extras = re.fullmatch(r"(\S+\.whl)\[(\S+)\]", done.stdout.splitlines()[-1]).groups()
    assert Path(wheel).exists() and "all" in extras.split(",")
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert (accelerator in extras.split(",")) == (accelerator != "cpu")


def test_an_unknown_accelerator_ends_the_build(install):
    done = install("gpu")
    assert done.returncode == 2 and "expected cpu, cuda or tpu" in done.stderr and not done.stdout


def test_the_image_starts_the_command_as_another_user_than_root():
    assert values("ENTRYPOINT") == ['["t2t-flax"]'] and "t2t-flax" in PROJECT["scripts"]
    assert values("USER") == ["${RUN_AS}"]
    (user,) = (text.partition("=")[2] for text in values("ARG") if text.startswith("RUN_AS"))
    assert any(step.startswith("useradd") and shlex.split(step)[-1] == user for step in values("RUN"))
    assert values("WORKDIR")[-1] == f"/home/{user}", "where configs/ is copied to"


def test_the_health_of_a_server_is_asked_for():
    (command,) = values("HEALTHCHECK")
    words = json.loads(command.partition("CMD ")[2])
    assert words[1] == "-m" and importlib.util.find_spec(words[2])


def test_compiled_programs_are_kept_in_a_volume_that_every_user_may_write():
    folders = [word.partition("=")[2] for text in values("ENV") for word in text.split() if "CACHE_DIR" in word]
    assert values("VOLUME") == ["/cache"] and [Path(folder).parent for folder in folders] == [Path("/cache")]
    assert any("mkdir -m 1777 /cache" in step for step in values("RUN"))


def test_the_python_of_the_image_is_a_tested_one():
    (python,) = (text.partition("=")[2] for text in values("ARG") if text.startswith("PYTHON"))
    assert f'"{python}"' in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
