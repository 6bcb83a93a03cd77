"""`sweep --submit=LAUNCHER:N` with stand-ins for the clouds' programs."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from helpers.cloud_programs import recorded_calls, recording_programs
from helpers.thread_groups import wait_until

from t2t_flax.__main__ import main
from t2t_flax.extensions.sweeps.folder import Folder, read_sweep
from t2t_flax.extensions.sweeps.launchers import worker_name

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
SWEEP = [
    "--config=configs/toy.py",
    "--workdir=/sweeps/My_Dropout",
    "--set",
    "model.dropout=0.1,0.2",
    "--config.train.steps=7",
]
WORKER = [
    "python", "-m", "t2t_flax", "sweep", "--workdir=/sweeps/My_Dropout", "--config=configs/toy.py",
    "--set=model.dropout=0.1,0.2", "--config.train.steps=7", "--parallel=1", "--stack=1", "--retries=2",
]  # fmt: skip


def submit(launcher, *options, arguments=SWEEP) -> int:
    flags = [flag for option in options for flag in ("--submit-option", option)]
    return main(["sweep", *arguments, f"--submit={launcher}", *flags])


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The folder of the stand-ins."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", recording_programs(tmp_path)["PATH"])
    return tmp_path


def test_skypilot_starts_a_managed_job_for_each_worker(programs, capfd):
    assert submit("skypilot:2", "accelerators=tpu-v6e-16", "nfs=10.0.0.2:/share=/sweeps") == 0
    calls = recorded_calls(programs)
    assert [call[:4] for call in calls] == [["sky", "jobs", "launch", "launch/skypilot.yaml"]] * 2
    assert [call[4] for call in calls] == ["--name=my-dropout-1", "--name=my-dropout-2"]
    for call in calls:
        (command,) = (word for word in call if word.startswith("--env=T2T_COMMAND="))
        assert shlex.split(command.split("=", 2)[2]) == WORKER
        assert {"--gpus=tpu-v6e-16", "--env=T2T_NFS=10.0.0.2:/share=/sweeps"} <= set(call)
    assert "2 trials of configs/toy.py" in capfd.readouterr().out and not Path("/sweeps/My_Dropout").exists()


def test_gke_applies_a_jobset_for_each_worker(programs):
    assert submit("gke:2", "name=d", "image=i", "hosts=8", "topology=4x8", "volume=sweeps:/sweeps") == 0
    assert [call[:3] for call in recorded_calls(programs)] == [
        ["kubectl", "get", "jobset"], ["kubectl", "apply", "--filename=-"]
    ] * 2  # fmt: skip
    jobsets = [each for each in yaml.safe_load_all((programs / "manifests").read_text()) if each]
    assert [each["metadata"]["name"] for each in jobsets] == ["d-1", "d-2"]
    for jobset in jobsets:
        spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        assert container["command"] == WORKER and spec["completions"] == 8
        assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/sweeps"}]


GCLOUD = """#!{python}
import json, pathlib, sys
folder, words = pathlib.Path({folder!r}), sys.argv[1:]
print(json.dumps(words), file=(folder / "calls").open("a"))
name = words[4]
command = next((w for w in words if "retry.sh" in w), "")
if words[3] == "describe":
    print("ACTIVE")
elif command:
    (folder / name).write_text(command)
elif words[3] == "ssh":
    started = (folder / name).exists()
    print((folder / "result").read_text() if started else "never")
"""


@pytest.fixture
def slices(programs):
    """As `programs`; slices are active, and the command on each of them ends with the exit code in the file `result`."""
    gcloud = programs / "bin" / "gcloud"
    gcloud.write_text(GCLOUD.format(python=sys.executable, folder=str(programs)))
    (programs / "result").write_text("0")
    return programs


@pytest.mark.parametrize("result", ["0", "2"])
def test_queued_resources_are_watched_until_their_workers_end(slices, capfd, result):
    (slices / "result").write_text(result)
    assert submit("queued-resource:2", "zone=z", "poll=0", "nfs=10.0.0.2:/share=/sweeps") == int(result)
    for worker in ("my-dropout-1", "my-dropout-2"):
        command = (slices / worker).read_text()
        assert f"-- {shlex.join(WORKER)} " in command and "launch/mount_nfs.sh 10.0.0.2:/share=/sweeps &&" in command
    out = capfd.readouterr().out
    assert all(f"[my-dropout-{i}] the slice is ACTIVE, the command: never" in out for i in (1, 2))


def test_signal_ends_the_watch_and_leaves_the_workers(slices):
    (slices / "result").write_text("running")
    thread = threading.Thread(
        target=lambda: (wait_until((slices / "my-dropout-1").exists, 30.0), os.kill(os.getpid(), signal.SIGTERM))
    )
    thread.start()
    assert submit("queued-resource:1", "zone=z", "poll=0") == 75
    thread.join()
    assert not any("delete" in call for call in recorded_calls(slices))


def test_slurm_gets_a_job_for_each_worker(programs):
    """They join the sweep that is created now: an edit of its config before they start does not count."""
    arguments = [f"--workdir={programs}/My_Dropout", *SWEEP[:1], *SWEEP[2:], "--retry-failed"]
    assert submit("2", "gpus_per_node=1", "time=10:00:00", arguments=arguments) == 0
    calls = recorded_calls(programs)
    assert [call[:2] for call in calls] == [["sbatch", f"--job-name=my-dropout-{i}"] for i in (1, 2)]
    joins = [sys.executable, *WORKER[1:4], f"--workdir={programs}/My_Dropout", *WORKER[-3:]]
    for call in calls:
        assert {"--gres=gpu:1", "--time=10:00:00"} <= set(call) and call[call.index(sys.executable) :] == joins
    assert list(read_sweep(programs / "My_Dropout")["trials"]) == ["dropout=0.1,seed=0", "dropout=0.2,seed=0"]
    assert Folder(programs / "My_Dropout").read_config("dropout=0.1,seed=0").train.steps == 7


def test_slurm_gets_relative_folders_and_options_of_sbatch(programs, monkeypatch):
    monkeypatch.chdir(programs)
    arguments = [f"--config={ROOT}/configs/toy.py", "--workdir=s"]
    assert submit("1", "options=--gres=gpu:4", "restarts=3", arguments=[*arguments, "--parallel=4"]) == 0
    (call,) = recorded_calls(programs)
    assert {"--gres=gpu:4", "--ntasks-per-node=1", "--export=ALL,T2T_RESTARTS=3"} <= set(call)
    assert {f"--workdir={programs}/s", "--parallel=4"} <= set(call) and (programs / "s" / "sweep.json").exists()


def test_slurm_dry_run_lists_the_trials_of_an_existing_sweep(programs, capfd):
    arguments = [f"--workdir={programs}/s", *SWEEP[:1], *SWEEP[2:]]
    assert submit("1", arguments=[*arguments, "--dry-run"]) == 0 and not (programs / "s").exists()
    assert submit("1", arguments=arguments) == 0
    capfd.readouterr()
    assert submit("1", arguments=[*arguments[:1], "--dry-run"]) == 0 and len(recorded_calls(programs)) == 1
    out = capfd.readouterr().out
    assert out.index("dropout=0.2,seed=0") < out.index("sbatch --job-name=s-1")


@pytest.mark.parametrize("launcher, options, expected", [
    ("skypilot:2", [], ["sky jobs launch launch/skypilot.yaml --name=my-dropout-1 ", "--name=my-dropout-2 "]),
    ("gke", ["image=i"], ["kubectl apply --filename=-", "name: my-dropout-1", '"python", "-m", "t2t_flax", "sweep"']),
    ("queued-resource", ["zone=z"], ["gcloud compute tpus queued-resources create my-dropout-1 ", " scp ", "retry.sh"]),
])  # fmt: skip
def test_dry_run_prints_commands_and_runs_none(tmp_path, monkeypatch, capfd, launcher, options, expected):
    monkeypatch.chdir(ROOT)
    programs = recording_programs(tmp_path)["PATH"].split(":")[0]
    for name in ("sky", "kubectl", "gcloud", "git"):
        (Path(programs) / name).write_text("#!/bin/sh\nexit 9\n")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    assert submit(launcher, *options, arguments=[*SWEEP, "--dry-run"]) == 0
    out = capfd.readouterr().out
    assert all(text in out for text in expected), out
    assert out.index("dropout=0.2,seed=0") < out.index(expected[0])


@pytest.mark.parametrize("launcher, program, hint", [
    ("2", "sbatch", "on a login node"), ("skypilot", "sky", "pip install 'skypilot[gcp]'"), ("gke:3", "kubectl", "kubernetes.io/docs/tasks/tools"),
    ("queued-resource", "gcloud", "cloud.google.com/sdk/docs/install"),
])  # fmt: skip
def test_missing_program_is_named_with_its_installation(tmp_path, monkeypatch, capsys, launcher, program, hint):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert submit(launcher, arguments=[*SWEEP[:1], f"--workdir={tmp_path}/s"]) == 2
    err = capsys.readouterr().err
    assert f"needs `{program}`, which is not on PATH" in err and hint in err and not (tmp_path / "s").exists()


@pytest.mark.parametrize("launcher, arguments, message", [
    ("gke", [*SWEEP[:1], "--workdir=relative"], "needs the absolute path of a folder that all hosts mount"),
    ("gke", [*SWEEP[:1], "--workdir=gs://b/s"], "needs the absolute path of a folder that all hosts mount"),
    ("gke", [*SWEEP, "--retry-failed"], "/sweeps/My_Dropout has no sweep.json"),
    ("slurm", [*SWEEP[:1], "--workdir=gs://b/s"], "not an object store"), ("slurm", ["--workdir=/sweeps/x"], "has no sweep.json"),
    ("gke", [*SWEEP, "--set", "model.dropoutt=1"], "unknown config key 'model.dropoutt'"),
    ("gke", ["--workdir=/sweeps/x", "--seeds=2"], "need --config or --sweep"),
    ("nimbus:2", SWEEP, "there is no launcher 'nimbus': expected one of slurm, skypilot, gke, queued-resource"),
    ("gke:0", SWEEP, "must be at least 1"), ("-1", SWEEP, "must be at least 1"), ("gke:x", SWEEP, "expected a whole number"),
    ("gke", SWEEP, "my-dropout-1 was not started"),  # without --image
    ("skypilot", [*SWEEP, "--submit-option", "colour=red"], "my-dropout-1 was not started"),
])  # fmt: skip
def test_user_errors(programs, capfd, launcher, arguments, message):
    assert submit(launcher, arguments=arguments) == 2
    assert message in capfd.readouterr().err and not (programs / "calls").exists()


def test_existing_sweep_is_joined(programs):
    assert submit("skypilot", arguments=["--workdir=/sweeps/x"]) == 0
    (call,) = recorded_calls(programs)
    command = next(word for word in call if word.startswith("--env=T2T_COMMAND=")).split("=", 2)[2]
    assert shlex.split(command)[:5] == [*WORKER[:4], "--workdir=/sweeps/x"] and "--config" not in command


def test_names_of_workers():
    assert (
        worker_name("My_Dropout.2") == "my-dropout-2"
        and worker_name("3 é") == "sweep-3"
        and worker_name("..") == "sweep"
    )
    assert len(worker_name("x" * 99)) == 30


@pytest.mark.parametrize("mounted", [False, True])
def test_nfs_is_mounted_once(tmp_path, mounted):
    for name in ("sudo", "mount.nfs4"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    (tmp_path / "mountpoint").write_text(f"#!/bin/sh\nexit {int(not mounted)}\n")
    for name in ("sudo", "mount.nfs4", "mountpoint"):
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = str(ROOT / "launch" / "mount_nfs.sh")
    subprocess.run([script, "10.0.0.2:/share=/sweeps"], env=env, check=True)
    calls = (tmp_path / "calls").read_text().splitlines() if not mounted else []
    assert calls == ([] if mounted else ["mkdir -p /sweeps", "mount -t nfs4 10.0.0.2:/share /sweeps"])
    assert mounted == (not (tmp_path / "calls").exists())
    wrong = subprocess.run([script, "10.0.0.2:/share"], env=env, capture_output=True, text=True)
    assert wrong.returncode == 2 and "expected SERVER:/EXPORT=/PATH" in wrong.stderr
