"""The launchers' dry runs print exactly the commands that real runs execute."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.cloud_programs import recorded_calls, recording_programs

LAUNCH = Path(__file__).parents[2] / "launch"
TRAIN = [
    "python",
    "-m",
    "t2t_flax",
    "train",
    "--config=configs/my run.py:big",
    "--workdir=gs://b/w",
    "--config.data.train=a\"b,it's $HOME",
]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def launch(script, *arguments, cwd, code=0, **env):
    result = subprocess.run(
        [str(LAUNCH / f"{script}.sh"), *arguments],
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def dry(script, *arguments, cwd) -> list[list[str]]:
    out = launch(script, arguments[0], "--dry-run", *arguments[1:], cwd=cwd).stdout
    return [shlex.split(line) for line in out.splitlines()]


GCLOUD = "gcloud compute tpus tpu-vm"
QUEUED = "gcloud compute tpus queued-resources"
TPU = ["--name=n", "--zone=z", "--project=p"]
FIRST_PODS = "jobset.sigs.k8s.io/jobset-name=n,batch.kubernetes.io/job-completion-index=0"
CASES = {
    ("tpu_vm", "create", *TPU): [f"{GCLOUD} create n --zone=z --project=p --accelerator-type=v5litepod-16 --version=v2-alpha-tpuv5-lite"],
    ("tpu_vm", "create", "--name=n", "--zone=z", "--accelerator=v6e-16", "--version=v2-alpha-tpuv6e", "--spot=yes"): [
        f"{GCLOUD} create n --zone=z --accelerator-type=v6e-16 --version=v2-alpha-tpuv6e --spot"
    ],
    ("tpu_vm", "logs", *TPU): [f"{GCLOUD} ssh n --worker=0 --zone=z --project=p '--command=tail -n 200 -F t2t.log'"],
    ("tpu_vm", "delete", *TPU): [f"{GCLOUD} delete n --zone=z --project=p --quiet"],
    ("queued_resource", "create", *TPU, "--spot=yes"): [
        f"{QUEUED} create n --node-id=n --zone=z --project=p --accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite --spot"
    ],
    ("queued_resource", "logs", *TPU): [f"{GCLOUD} ssh n --worker=0 --zone=z --project=p '--command=tail -n 200 -F t2t.log'"],
    ("queued_resource", "delete", *TPU): [f"{QUEUED} delete n --zone=z --project=p --force --quiet"],
    ("gke", "create", "--name=n", "--slices=2", "--cluster=c", "--zone=z"): [
        *(
            f"gcloud container node-pools create n-{i} --cluster=c --location=z --node-locations=z "
            "--machine-type=ct5lp-hightpu-4t --tpu-topology=4x4 --num-nodes=4"
            for i in range(2)
        ),
        "kubectl apply --server-side --filename=https://github.com/kubernetes-sigs/jobset/releases/download/v0.10.1/manifests.yaml",
    ],
    ("gke", "logs", "--name=n"): [f"kubectl logs --follow --prefix --tail=200 --max-log-requests=64 --selector={FIRST_PODS}"],
    ("gke", "delete", "--name=n"): ["kubectl delete jobset/n secret/n-env --ignore-not-found --wait"],
    ("gke", "delete", "--name=n", "--nodes=yes", "--cluster=c", "--zone=z"): [
        "kubectl delete jobset/n secret/n-env --ignore-not-found --wait",
        "gcloud container node-pools delete n-0 --cluster=c --location=z --quiet",
    ],
    ("skypilot", "create", "--name=n"): ["sky check"],
    ("skypilot", "logs", "--name=n"): ["sky jobs logs --name=n --follow"],
    ("skypilot", "delete", "--name=n"): ["sky jobs cancel --name=n --yes"],
    ("xpk", "create", "--cluster=c", "--name=n", "--slices=2", "--zone=z", "--capacity=spot"): [
        "xpk cluster create --cluster=c --zone=z --tpu-type=v5litepod-16 --num-slices=2 --spot"
    ],
    ("xpk", "logs", "--cluster=c", "--name=n"): [
        f"kubectl logs --follow --prefix --tail=200 --max-log-requests=64 --selector={FIRST_PODS}"
    ],
    ("xpk", "delete", "--cluster=c", "--name=n"): ["xpk workload delete --workload=n --cluster=c --force"],
    ("xpk", "delete", "--cluster=c", "--name=n", "--everything=yes"): [
        "xpk workload delete --workload=n --cluster=c --force", "xpk cluster delete --cluster=c --force"
    ],
    ("slurm", "create", "--name=n"): ["python3 -m venv .venv", f".venv/bin/pip install -e {LAUNCH}/.."],
    ("slurm", "logs", "--name=n"): ["tail -n 200 -F n.log"],
    ("slurm", "delete", "--name=n"): ["scancel --name=n --me"],
}  # fmt: skip


@pytest.mark.parametrize("call", CASES, ids=" ".join)
def test_dry_run_commands_match_recorded_ones(call, tmp_path):
    assert dry(*call, cwd=tmp_path) == [shlex.split(line) for line in CASES[call]]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [c for c in CASES if c[:2] != ("slurm", "create")], ids=" ".join)
def test_real_runs_execute_the_commands_of_the_dry_run(call, tmp_path):
    launch(*call, cwd=tmp_path, **recording_programs(tmp_path))
    assert recorded_calls(tmp_path) == dry(*call, cwd=tmp_path)


def test_skypilot_run(tmp_path):
    (line,) = dry(
        "skypilot",
        "run",
        "--name=n",
        "--accelerators=H100:8",
        "--nodes=4",
        "--infra=gcp/x",
        "--spot=no",
        "--",
        *TRAIN,
        cwd=tmp_path,
    )
    command = next(word for word in line if word.startswith("--env=T2T_COMMAND="))
    assert shlex.split(command.split("=", 2)[2]) == TRAIN
    line.remove(command)
    assert line == shlex.split(
        "sky jobs launch launch/skypilot.yaml --name=n --gpus=H100:8 --num-nodes=4 --no-use-spot --infra=gcp/x "
        "--env=T2T_EXTRAS=cuda,gcs --env=T2T_RESTARTS=20 --yes --detach-run"
    )
    cancel, again = dry("skypilot", "resume", "--name=n", "--", *TRAIN, cwd=tmp_path)
    assert cancel == ["sky", "jobs", "cancel", "--name=n", "--yes"] and "--env=T2T_EXTRAS=tpu,gcs" in again


def test_xpk_run(tmp_path):
    call = ["--cluster=c", "--name=n", "--slices=2", "--image=i", "--", *TRAIN]
    (line,) = dry("xpk", "run", *call, cwd=tmp_path)
    assert shlex.split(line.pop().removeprefix("--command=")) == TRAIN
    assert line == shlex.split(
        "xpk workload create --workload=n --cluster=c --tpu-type=v5litepod-16 --num-slices=2 --docker-image=i --max-restarts=20 "
        "--restart-on-exit-codes=1,75 --termination-grace-period-seconds=300 --env=PYTHONUNBUFFERED=1"
    )
    delete, again = dry("xpk", "resume", *call, cwd=tmp_path)
    assert delete[:3] == ["xpk", "workload", "delete"] and again[:-1] == line


def test_slurm_run(tmp_path):
    call = [
        "--name=n",
        "--nodes=2",
        "--gpus-per-node=8",
        "--time=60",
        "--partition=gpu",
        "--options=--account=a --qos=b",
    ]
    line = shlex.split(
        "sbatch --job-name=n --nodes=2 --ntasks-per-node=8 --gres=gpu:8 --time=60 --partition=gpu --export=ALL,T2T_RESTARTS=20 "
        "--account=a --qos=b"
    )  # fmt: skip
    script = [str(LAUNCH / "slurm.sbatch"), *TRAIN]
    assert dry("slurm", "run", *call, "--", *TRAIN, cwd=tmp_path) == [line + script]
    assert dry("slurm", "resume", *call, "--", *TRAIN, cwd=tmp_path) == [line + ["--dependency=singleton"] + script]
    refused = launch("slurm", "run", *call, "--tasks-per-node=1", "--", *TRAIN, cwd=tmp_path, code=2)
    assert "JAX gives each task one GPU" in refused.stderr


def test_babysit_dry_run(tmp_path):
    rounds = dry("queued_resource", "babysit", *TPU, "--", *TRAIN, cwd=tmp_path)
    words = [" ".join(line[:5]) if line[0] == "gcloud" else line[0] for line in rounds]
    run = ["git", f"{GCLOUD} scp", f"{GCLOUD} ssh"]
    assert words == [f"{QUEUED} create", f"{GCLOUD} ssh", *run, f"{QUEUED} delete", f"{QUEUED} create", *run]


SCRIPTS = sorted(p.stem for p in LAUNCH.glob("*.sh") if p.stem not in ("local_pod", "mount_nfs", "retry", "shared"))
REQUIRED = {"tpu_vm": TPU, "queued_resource": TPU, "xpk": ["--cluster=c", "--name=n", "--image=i"]}


@pytest.mark.parametrize("script", SCRIPTS)
def test_user_errors_show_the_usage(script, tmp_path):
    required = REQUIRED.get(script, ["--name=n"])
    for arguments, message in [
        ([], "is missing"),
        (["run", *required], "give it after --"),
        (["run", *required, "--"], "give it after --"),
        (["fly", *required], "unknown sub-command 'fly'"),
        (["delete", *required, "--nmae=x"], "unknown flag --nmae"),
        (["delete", *required, "now"], "unexpected 'now'"),
        (["delete", required[0]], "--zone is missing" if script in ("tpu_vm", "queued_resource") else None),
    ]:
        if message:
            arguments = [*arguments[:1], "--dry-run", *arguments[1:]] if arguments else []
            err = launch(script, *arguments, cwd=tmp_path, code=2).stderr
            assert message in err and f"usage: launch/{script}.sh create|run|logs|resume|" in err


@pytest.mark.parametrize("value", ["08", "x", ""])
@pytest.mark.parametrize("script", SCRIPTS)
def test_restarts_is_a_whole_number(script, value, tmp_path):
    arguments = [*REQUIRED.get(script, ["--name=n"]), f"--restarts={value}", "--", "x"]
    err = launch(script, "run", "--dry-run", *arguments, cwd=tmp_path, code=2).stderr
    assert f"--restarts={value}: expected a whole number, 0 or more" in err


def test_invalid_choices_and_missing_flags_are_reported(tmp_path):
    assert (
        "expected yes or no"
        in launch("skypilot", "run", "--name=n", "--spot=maybe", "--", "x", cwd=tmp_path, code=2).stderr
    )
    assert (
        "expected on-demand or spot"
        in launch("xpk", "create", "--name=n", "--cluster=c", "--capacity=x", cwd=tmp_path, code=2).stderr
    )
    assert "--image is missing" in launch("gke", "run", "--name=n", "--", "x", cwd=tmp_path, code=2).stderr


@pytest.mark.parametrize("mounted", [False, True])
def test_nfs_is_mounted_once(tmp_path, mounted):
    for name in ("sudo", "mount.nfs4"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    (tmp_path / "mountpoint").write_text(f"#!/bin/sh\nexit {int(not mounted)}\n")
    for name in ("sudo", "mount.nfs4", "mountpoint"):
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = str(LAUNCH / "mount_nfs.sh")
    subprocess.run([script, "10.0.0.2:/share=/sweeps"], env=env, check=True)
    calls = (tmp_path / "calls").read_text().splitlines() if not mounted else []
    assert calls == ([] if mounted else ["mkdir -p /sweeps", "mount -t nfs4 10.0.0.2:/share /sweeps"])
    assert mounted == (not (tmp_path / "calls").exists())
    wrong = subprocess.run([script, "10.0.0.2:/share"], env=env, capture_output=True, text=True)
    assert wrong.returncode == 2 and "expected SERVER:/EXPORT=/PATH" in wrong.stderr
