"""The launchers' dry runs print exactly the commands that real runs execute."""

import os
import shlex
import shutil
import subprocess

import pytest
from helpers.cloud_programs import LAUNCH, dry, launch, recorded_calls, recording_programs
from helpers.refusals import assert_names

TRAIN = [
    "python",
    "-m",
    "t2t_flax",
    "train",
    "--config=configs/my run.py:big",
    "--workdir=gs://b/w",
]
TRAIN.append("--config.data.train=a\"b,it's $HOME")
QUOTED = """python -m t2t_flax train '--config=configs/my run.py:big' --workdir=gs://b/w '--config.data.train=a"b,it'\\''s $HOME'"""
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
GCLOUD = "gcloud compute tpus tpu-vm"
QUEUED = "gcloud compute tpus queued-resources"
TPU = ["--name=n", "--zone=z", "--project=p"]
FIRST_PODS = "jobset.sigs.k8s.io/jobset-name=n,batch.kubernetes.io/job-completion-index=0"
RUN = [
    "--name=n",
    "--nodes=2",
    "--gpus-per-node=8",
    "--time=60",
    "--partition=gpu",
    "--options=--account=a --qos=b",
]
SBATCH = (
    "sbatch --job-name=n --nodes=2 --ntasks-per-node=8 --gres=gpu:8 --time=60 --partition=gpu "
    f"--export=ALL,T2T_RESTARTS=20,T2T_LAUNCH={LAUNCH} --account=a --qos=b"
)
SCRIPT = shlex.join([str(LAUNCH / "slurm.sbatch"), *TRAIN])
SKY = "--spot=no --accelerators=H100:8 --nodes=4 --infra=gcp/x".split()
CASES = {
    ("tpu_vm", "create", *TPU, "--spot=no"): [f"{GCLOUD} create n --zone=z --project=p --accelerator-type=v5litepod-16 --version=v2-alpha-tpuv5-lite"],
    ("tpu_vm", "create", "--name=n", "--zone=z", "--accelerator=v6e-16", "--version=v2-alpha-tpuv6e", "--spot=yes"): [
        f"{GCLOUD} create n --zone=z --accelerator-type=v6e-16 --version=v2-alpha-tpuv6e --spot"
    ],
    ("tpu_vm", "logs", *TPU): [f"{GCLOUD} ssh n --worker=0 --zone=z --project=p '--command=tail -n 200 -F t2t.log'"],
    ("tpu_vm", "delete", *TPU): [f"{GCLOUD} delete n --zone=z --project=p --quiet"],
    ("queued_resource", "create", *TPU, "--spot=yes"): [
        f"{QUEUED} create n --node-id=n --zone=z --project=p --accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite --spot"
    ],
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
    ("gke", "delete", "--name=n", "--nodes=no"): ["kubectl delete jobset/n secret/n-env --ignore-not-found --cascade=foreground --wait"],
    ("gke", "delete", "--name=n", "--nodes=yes", "--cluster=c", "--zone=z"): [
        "kubectl delete jobset/n secret/n-env --ignore-not-found --cascade=foreground --wait",
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
    ("xpk", "delete", "--cluster=c", "--name=n", "--everything=no"): ["xpk workload delete --workload=n --cluster=c --force"],
    ("xpk", "delete", "--cluster=c", "--name=n", "--everything=yes"): [
        "xpk workload delete --workload=n --cluster=c --force", "xpk cluster delete --cluster=c --force"
    ],
    ("slurm", "create", "--name=n"): ["python3 -m venv .venv", f".venv/bin/pip install -e {LAUNCH}/.."],
    ("slurm", "logs", "--name=n"): ["tail -n 200 -F n.log"],
    ("slurm", "delete", "--name=n"): ["scancel --name=n --me"],
    ("slurm", "run", *RUN, "--", *TRAIN): [f"{SBATCH} {SCRIPT}"],
    ("slurm", "resume", *RUN, "--", *TRAIN): [f"{SBATCH} --dependency=singleton {SCRIPT}"],
    ("skypilot", "run", "--name=n", *SKY, "--", *TRAIN): [
        "sky jobs launch launch/skypilot.yaml --name=n --gpus=H100:8 --num-nodes=4 --no-use-spot --infra=gcp/x "
        f"--env=T2T_EXTRAS=cuda,gcs {shlex.quote('--env=T2T_COMMAND=' + QUOTED)} --env=T2T_RESTARTS=20 --yes --detach-run"
    ],
    ("xpk", "run", "--cluster=c", "--name=n", "--slices=2", "--image=i", "--", *TRAIN): [
        "xpk workload create --workload=n --cluster=c --tpu-type=v5litepod-16 --num-slices=2 --docker-image=i --max-restarts=20 "
        "--restart-on-exit-codes=1,75 --termination-grace-period-seconds=300 --env=PYTHONUNBUFFERED=1 "
        + shlex.quote("--command=" + QUOTED)
    ],
}  # fmt: skip


LAUNCHERS = sorted({launcher for launcher, *_ in CASES})


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_dry_runs_print_the_commands_that_real_runs_execute(launcher, tmp_path):
    for number, call in enumerate(call for call in CASES if call[0] == launcher):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert dry(*call, cwd=folder) == [shlex.split(line) for line in CASES[call]]
        assert not list(folder.iterdir())
        if call[:2] != ("slurm", "create"):
            launch(*call, cwd=folder, **recording_programs(folder))
            assert recorded_calls(folder) == dry(*call, cwd=folder)


def test_resume_removes_what_is_left_of_the_run_before(tmp_path):
    cancel, again = dry("skypilot", "resume", "--name=n", "--", *TRAIN, cwd=tmp_path)
    assert cancel[:3] == ["sky", "jobs", "cancel"] and "--env=T2T_EXTRAS=tpu,gcs" in again
    delete, again = dry(
        "xpk", "resume", "--cluster=c", "--name=n", "--image=i", "--", *TRAIN, cwd=tmp_path
    )
    assert delete[:3] == ["xpk", "workload", "delete"] and again[:3] == [
        "xpk",
        "workload",
        "create",
    ]


def test_babysit_dry_run(tmp_path):
    rounds = dry("queued_resource", "babysit", *TPU, "--", *TRAIN, cwd=tmp_path)
    words = [" ".join(line[:5]) if line[0] == "gcloud" else line[0] for line in rounds]
    run = ["git", f"{GCLOUD} scp", f"{GCLOUD} ssh"]
    assert words == [
        f"{QUEUED} create",
        f"{GCLOUD} ssh",
        *run,
        f"{QUEUED} delete",
        f"{QUEUED} create",
        *run,
    ]


def test_run_on_a_tpu_vm_looks_for_running_commands_before_it_copies(tmp_path):
    words = [
        line[:5]
        for line in dry("tpu_vm", "run", *TPU, "--env=TOKEN", "--", *TRAIN, cwd=tmp_path, TOKEN="x")
    ]
    assert [line[-1] for line in words if line[0] == "gcloud"] == [
        "ssh",
        "scp",
        "scp",
        "ssh",
    ] and words[1][0] == "git"


REQUIRED = {"tpu_vm": TPU, "queued_resource": TPU, "xpk": ["--cluster=c", "--name=n", "--image=i"]}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_wrong_flags_are_refused_with_the_usage(launcher, tmp_path):
    required = REQUIRED.get(launcher, ["--name=n"])
    for arguments, name in [
        ([], "usage"),
        (["run", *required], "usage"),
        (["fly", *required], "fly"),
        (["delete", *required, "--nmae=x"], "--nmae"),
        (["delete", *required, "now"], "now"),
        *(
            (["run", *required, f"--restarts={value}", "--", "x"], f"--restarts={value}")
            for value in ("08", "x", "")
        ),
    ]:
        arguments = [*arguments[:1], "--dry-run", *arguments[1:]] if arguments else []
        assert_names(
            launch(launcher, *arguments, cwd=tmp_path, code=2).stderr, name, f"launch/{launcher}.sh"
        )


@pytest.mark.parametrize(
    "call, name",
    [
        ("skypilot run --name=n --spot=maybe -- x", "--spot"),
        ("xpk create --name=n --cluster=c --capacity=x", "--capacity"),
        ("gke run --name=n -- x", "--image"),
        ("gke resume --name=n -- x", "--image"),
        ("gke create --name=n --cluster=c", "--zone"),
        ("gke create --name=n --cluster=c --zone=z --spot=true", "--spot=true"),
        ("gke delete --name=n --nodes=yes --zone=z", "--cluster"),
        ("gke delete --name=n --nodes=off --cluster=c --zone=z", "--nodes=off"),
        ("xpk resume --cluster=c --name=n -- x", "--image"),
        ("xpk delete --cluster=c --name=n --everything=", "--everything"),
        ("tpu_vm create --name=n --zone=z --spot=1", "--spot=1"),
        ("tpu_vm run --name=n --zone=z --idle=maybe -- x", "--idle"),
        ("tpu_vm run --name=n --zone=z --nfs=server -- x", "--nfs"),
        ("queued_resource create --name=n --zone=z --spot=False", "--spot"),
        ("queued_resource babysit --name=n --zone=z --nfs=server -- x", "--nfs"),
        ("skypilot resume --name=n --nfs=server -- x", "--nfs"),
        ("tpu_vm delete --name=n", "--zone"),
        ("tpu_vm delete --name=--all --zone=z", "--name=--all"),
        ("slurm delete --name=n,m", "--name=n,m"),
        ("gke run --name=n --image=* -- x", "--image=*"),
        ("slurm run --name=n --tasks-per-node=0x2 -- x", "--tasks-per-node=0x2"),
        ("slurm run --name=n --options=--comment='a' -- x", "--options"),
        ("slurm run --name=n --gpus-per-node=8 --tasks-per-node=1 -- x", "--tasks-per-node"),
        ("tpu_vm run --name=n --zone=z --env=NO_SUCH_1 -- x", "NO_SUCH_1"),
        ("tpu_vm run --name=n --zone=z --env=TOKEN=value -- x", "--env"),
        ("tpu_vm run --name=n --zone=z --extras=a;b -- x", "--extras"),
    ],
)
def test_wrong_values_are_refused_before_the_first_step(call, name, tmp_path):
    message = launch(
        *call.split(), cwd=tmp_path, code=2, **recording_programs(tmp_path)
    ).stderr.partition("usage")[0]
    assert_names(message, name)
    assert "=value" not in message and not (tmp_path / "calls").exists()


@pytest.mark.parametrize("mounted", [False, True])
def test_nfs_is_mounted_once(tmp_path, mounted):
    for name in ("sudo", "mount.nfs4"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    (tmp_path / "calls").touch()
    (tmp_path / "mountpoint").write_text(f"#!/bin/sh\nexit {int(not mounted)}\n")
    for name in ("sudo", "mount.nfs4", "mountpoint"):
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = str(LAUNCH / "mount_nfs.sh")
    subprocess.run([script, "10.0.0.2:/share=/sweeps"], env=env, check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == (
        [] if mounted else ["mkdir -p /sweeps", "mount -t nfs4 10.0.0.2:/share /sweeps"]
    )
    wrong = subprocess.run([script, "10.0.0.2:/share"], env=env, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert_names(wrong.stderr, "10.0.0.2:/share")
