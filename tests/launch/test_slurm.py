"""launch/slurm.sh on a real SLURM cluster of one node, started from Debian's packages."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from helpers.processes import ROOT, checkpoints, command, environment, losses, wait_for

PROGRAMS = (
    "slurmctld",
    "slurmd",
    "munged",
    "sbatch",
    "srun",
    "squeue",
    "scontrol",
    "scancel",
    "sinfo",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=500 State=UNKNOWN
PartitionName=local Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment of a shell on the cluster's login node."""
    if os.geteuid() != 0:
        pytest.skip("starting a SLURM cluster needs root")
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install slurm-wlm munge")
    folder, host = tmp_path_factory.mktemp("slurm"), socket.gethostname().split(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(CONF.format(folder=folder, host=host, ports=free_ports(2)))
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    env = environment() | {"SLURM_CONF": str(folder / "slurm.conf")}
    munge = [
        f"--{name}={folder}/munge.{name.removesuffix('-file')}"
        for name in ("key-file", "log-file", "pid-file", "seed-file", "socket")
    ]
    daemons = []
    try:
        for words in (
            ["munged", "--foreground", "--force", *munge],
            ["slurmctld", "-D"],
            ["slurmd", "-D"],
        ):
            with (folder / f"{words[0]}.out").open("w") as log:
                daemons.append(subprocess.Popen(words, env=env, stdout=log, stderr=log))
            if words[0] == "munged":
                wait_for(
                    (folder / "munge.socket").exists, lambda: (folder / "munged.out").read_text()
                )

        def logs():
            return "\n".join(
                p.read_text()[-2000:] for p in folder.glob("*.*") if p.suffix in (".log", ".out")
            )

        wait_for(lambda: "idle" in output_of(["sinfo", "--noheader", "--format=%T"], env), logs)
        yield env
        subprocess.run(["scancel", "--me"], env=env)
        wait_for(lambda: not output_of(["squeue", "--noheader"], env), "all jobs have ended")
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()


def output_of(words, env) -> str:
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60).stdout


def submit(env, folder, *arguments) -> str:
    """Submits a job and returns its number."""
    words = [str(ROOT / "launch" / "slurm.sh"), *arguments]
    result = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return re.search(r"Submitted batch job (\d+)", result.stdout).group(1)


def state(env, job) -> str:
    """RUNNING, PENDING, COMPLETED, CANCELLED ..., or empty once SLURM has forgotten the job."""
    match = re.search(r"JobState=(\w+)", output_of(["scontrol", "show", "job", job], env))
    return match.group(1) if match else ""


def start_requeued(env, job, restart: int) -> None:
    """Starts a requeued job immediately; SLURM would wait for two minutes."""

    def queued():
        job_info = output_of(["scontrol", "show", "job", job], env)
        return "JobState=PENDING" in job_info and f"Restarts={restart} " in job_info

    def started():
        output_of(["scontrol", "update", f"JobId={job}", "StartTime=now"], env)
        time.sleep(1)
        return state(env, job) != "PENDING"

    wait_for(queued, f"job {job} is queued again")
    time.sleep(3)  # a node rejects a job that starts in the second of its end
    wait_for(started, f"job {job} starts again", seconds=120)


def test_training_of_two_tasks_survives_two_requeues(slurm, tmp_path, cache):
    """The first requeue follows a SIGTERM, as at the time limit.

    The second is done by the operator.

    The environment variable T2T_SLURM_LOG names a file for a copy of the job's log.
    """
    log, steps = tmp_path / "train.log", 150
    keys = dict(
        mesh_cpu_devices=1, train_steps=steps, checkpoint_every_steps=50, eval_every_steps=75
    )
    train = command(tmp_path / "run", cache, **keys)
    job = submit(slurm, tmp_path, "run", "--name=train", "--tasks-per-node=2", "--", *train)

    def text():
        return log.read_text() if log.exists() else ""

    def reached(step):
        return lambda: max(losses(tmp_path / "run"), default=0) >= step

    wait_for(reached(10), text, seconds=200)
    output_of(["scancel", "--signal=TERM", job], slurm)
    start_requeued(slurm, job, 1)
    first = int(re.search(r"stopped by \w+ after update (\d+), saved", text()).group(1))
    assert (
        re.search(rf"start 1 of job {job} ended with exit code 75, state RUNNING", text())
        and first < steps
    )

    wait_for(
        lambda: (
            f"after update {first}" in text().split("start 1 of job")[1] and reached(first + 10)()
        ),
        text,
        seconds=200,
    )
    output_of(["scontrol", "requeue", job], slurm)
    start_requeued(slurm, job, 2)
    second = int(re.findall(r"stopped by \w+ after update (\d+), saved", text())[1])
    assert first < second < steps and re.search(
        rf"start 2 of job {job} ended with exit code 75, state (?!RUNNING)", text()
    )

    wait_for(lambda: state(slurm, job) in ("COMPLETED", "FAILED", ""), text, seconds=400)
    assert f"start 3 of job {job} ended with exit code 0" in text(), text()
    assert (
        text().count("resuming ") == 2
        and f"resuming {tmp_path / 'run'} after update {second}" in text()
    )
    assert (
        checkpoints(tmp_path / "run")[-1] == steps and (tmp_path / "run" / "complete.json").exists()
    )

    # Undisturbed as a local pod of two processes: the same losses, bit for bit.
    undisturbed = command(tmp_path / "whole", cache, **keys)
    subprocess.run(
        [str(ROOT / "launch" / "local_pod.sh"), "2", "--", *undisturbed],
        env=environment(),
        check=True,
        timeout=400,
    )
    assert (
        losses(tmp_path / "run") == losses(tmp_path / "whole")
        and len(losses(tmp_path / "run")) == steps
    )
    if keep := os.environ.get("T2T_SLURM_LOG"):
        Path(keep).write_text(text())
