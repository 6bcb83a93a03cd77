"""What each launcher installs is what the command needs.

Environment variables reach it by name, never by value.
"""

import functools
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml
from helpers.cloud_programs import LAUNCH, dry, launch, recorded_calls, recording_programs

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
TRAIN = ["python", "-m", "t2t_flax", "train", "--config=configs/toy.py"]
TPU = ["--name=n", "--zone=z"]


@functools.cache
def launcher_extras() -> set[str]:
    """Those that launch/shared.sh can ask for."""
    rules = re.search(r"\nneeds='\n(.*?)'\n", (LAUNCH / "shared.sh").read_text(), re.S)[1]
    return {line.split()[0] for line in rules.splitlines()}


def packages(extras) -> set[str]:
    """Names of what these extras of pyproject.toml install."""
    names = set()
    for requirement in (requirement for extra in extras for requirement in EXTRAS[extra]):
        nested = re.fullmatch(r"t2t-flax\[(.*)\]", requirement)
        names |= (
            packages(nested[1].split(","))
            if nested
            else {re.match(r"[\w.-]+(\[\w+\])?", requirement)[0]}
        )
    return names


def dry_text(*call, **env) -> str:
    return "\n".join(map(" ".join, dry(*call, cwd=ROOT, **env)))


def image() -> list[str]:
    """Extras of an image for TPUs, which GKE and xpk start."""
    return re.search(r"^ARG EXTRAS=(.*)$", (ROOT / "Dockerfile").read_text(), re.M)[1].split(
        ","
    ) + ["tpu"]


def installed(launcher, command) -> set[str]:
    """The packages that a launcher installs for a command, beside those of t2t_flax itself."""
    if launcher in ("gke", "xpk"):
        return packages(image())
    flags = {"slurm": ("create", "--name=n", "--gpus-per-node=8"), "skypilot": ("run", "--name=n")}
    out = dry_text(launcher, *flags.get(launcher, ("run", *TPU)), "--", *command)
    (found,) = set(re.findall(r"T2T_EXTRAS=(\S+)|-e \S*\[(.*?)\]", out))
    return packages("".join(found).split(","))


LAUNCHERS = ["tpu_vm", "queued_resource", "skypilot", "slurm", "gke", "xpk"]
COMMANDS = {
    "plain": ([*TRAIN, "--workdir=runs/a"], set()),
    "bucket": ([*TRAIN, "--workdir=gs://b/run"], {"gcsfs"}),
    "text on S3": ([*TRAIN, "--config.data.train=s3://b/train"], {"s3fs"}),
    "preset": (["python", "-m", "t2t_flax", "train", "--config=wu2021_tiny"], {"subword-nmt"}),
    "scaling": (["python", "-m", "t2t_flax", "fit_scaling", "runs/a"], {"scipy"}),
    "sweep": (["python", "-m", "t2t_flax", "sweep", "--workdir=/sweeps/x"], {"optuna"}),
    "languages": ([*TRAIN, "--config.filters.language=0.95"], {"py3langid"}),
    "paragraphs": (
        ["python", "-m", "t2t_flax", "translate_file", "--workdir=gs://b/run", "--split-sentences"],
        {"gcsfs", "sentencex"},
    ),
    "Japanese": ([*TRAIN, "--config.languages.directions=en-de,en-ja"], {"sacrebleu[ja]"}),
    "all": (
        [
            "python",
            "-m",
            "t2t_flax",
            "sweep",
            "--workdir=gs://b/x",
            "--config.trackers.names=wandb,mlflow,trackio",
        ],
        {"gcsfs", "optuna", "wandb", "mlflow-skinny", "trackio"},
    ),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launcher_installs_what_each_command_needs(launcher):
    for name, (words, needed) in COMMANDS.items():
        found = installed(launcher, words)
        assert needed <= found, f"{launcher} installs {sorted(found)} for {name}"
        assert any(package.startswith("jax[") for package in found), "an accelerator's packages"
        if name == "plain" and launcher not in ("gke", "xpk"):
            assert len(found) == 1, "and nothing else"


def test_keys_that_a_config_file_sets_count(tmp_path):
    path = tmp_path / "a:b.py"
    path.write_text('config.trackers.names = "wandb"\nconfig.data.train = "gs://b/train"\n')
    for spec in (path, f"{path}:variant"):
        assert {"wandb", "gcsfs"} <= installed("tpu_vm", [*TRAIN[:-1], f"--config={spec}"])


def test_every_extra_is_known_to_the_launchers():
    """Those that no command of a launched run needs are named here."""
    assert (
        launcher_extras() | {"tpu", "cuda", "plan", "plan-gpu", "torch", "docs", "dev", "all"}
        == EXTRAS.keys()
    )
    assert (
        set(EXTRAS["all"][0].removeprefix("t2t-flax[").rstrip("]").split(",")) | set(image())
        >= launcher_extras()
    )


SECRET = 'a secret\'s "value" $HOME'
FLAGS = {
    "tpu_vm": TPU, "queued_resource": TPU, "skypilot": ["--name=n"], "gke": ["--name=n", "--image=i"],
    "xpk": ["--name=n", "--cluster=c", "--image=i"],
}  # fmt: skip


@pytest.mark.parametrize("launcher", FLAGS)
def test_value_of_a_variable_stands_on_no_command_line(launcher, tmp_path):
    env = {"TOKEN": SECRET, "OTHER": "x"}
    call = ["run", *FLAGS[launcher], "--env=TOKEN,OTHER", "--", *TRAIN]
    assert (
        "a secret"
        not in launch(launcher, call[0], "--dry-run", *call[1:], cwd=tmp_path, **env).stdout
    )
    result = launch(launcher, *call, cwd=tmp_path, **recording_programs(tmp_path) | env)
    assert "a secret" not in result.stdout + result.stderr + (tmp_path / "calls").read_text()


def test_gke_passes_variables_in_a_secret(tmp_path):
    values = {"TOKEN": SECRET, "OTHER": "two\nlines\n"}
    env = recording_programs(tmp_path) | values
    launch(
        "gke",
        "run",
        "--name=007",
        "--image=i",
        "--env=TOKEN,OTHER",
        "--",
        *TRAIN,
        cwd=tmp_path,
        **env,
    )
    secret, jobset = (
        each for each in yaml.safe_load_all((tmp_path / "manifests").read_text()) if each
    )
    assert secret["kind"] == "Secret" and secret["stringData"] == values
    assert jobset["metadata"]["name"] == "007"
    (container,) = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]


def test_skypilot_and_xpk_read_the_values_themselves(tmp_path):
    (words,) = dry(
        "skypilot", "run", "--name=n", "--env=TOKEN", "--", *TRAIN, cwd=ROOT, TOKEN=SECRET
    )
    assert "--secret=TOKEN" in words
    (words,) = dry(
        "skypilot", "run", "--name=n", "--accelerators=TPU-v6e-8", "--", *TRAIN, cwd=ROOT
    )
    assert "--env=T2T_EXTRAS=tpu" in words
    programs = recording_programs(tmp_path)
    Path(programs["PATH"].split(":")[0], "xpk").write_text(
        f'#!/bin/sh\nfor word; do case $word in --env-file=*) cat "${{word#*=}}" >{tmp_path}/names ;; esac; done\n'
    )
    launch(
        "xpk",
        "run",
        *FLAGS["xpk"],
        "--env=TOKEN",
        "--",
        *TRAIN,
        cwd=tmp_path,
        **programs,
        TOKEN=SECRET,
    )
    assert (tmp_path / "names").read_text() == "PYTHONUNBUFFERED=1\nTOKEN\n"


@pytest.mark.parametrize("state, replaced", [
    ("", False), ("StartupPolicyCompleted", False), ("Suspended", False), ("Completed", True), ("Failed", True),
])  # fmt: skip
def test_only_a_jobset_that_has_ended_is_replaced(tmp_path, state, replaced):
    programs = recording_programs(tmp_path)
    kubectl = Path(programs["PATH"].split(":")[0], "kubectl")
    kubectl.write_text(kubectl.read_text() + f"if sys.argv[1] == 'get': print({state!r})\n")
    launch("gke", "run", *FLAGS["gke"], "--", *TRAIN, cwd=tmp_path, **programs)
    words = [call[1] for call in recorded_calls(tmp_path)]
    assert words == (["get", "delete", "apply"] if replaced else ["get", "apply"])
