"""launch/tpu_vm.sh and queued_resource.sh with a stand-in for gcloud, which runs commands in a folder as the host."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.processes import wait_for

LAUNCH = Path(__file__).parents[2] / "launch"
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "flock", "tar"))), reason="needs bash, flock and tar"
)
# One host, simulated by a folder; the queued resource's state is a file. A new slice is an empty folder.
GCLOUD = """
import os, pathlib, shutil, subprocess, sys
cloud = pathlib.Path(os.environ["CLOUD"])
kind, action, *words = sys.argv[3:]
state, host = cloud / "state", cloud / "host"
print(kind, action, file=(cloud / "calls").open("a"))
option = lambda name: next((w.split("=", 1)[1] for w in words if w.startswith(name + "=")), None)
if (kind, action) == ("queued-resources", "describe"):
    if error := os.environ.get("DESCRIBE_ERROR"):
        sys.exit(error)
    sys.exit(print(state.read_text().strip()) if state.exists() else "ERROR: NOT_FOUND: Resource was not found")
elif action == "create" and "CREATE_ERROR" in os.environ:
    sys.exit(os.environ["CREATE_ERROR"])
elif action == "create":
    host.mkdir()
    state.write_text("ACTIVE")
elif action == "delete":
    shutil.rmtree(host)
    state.unlink()
elif action == "scp":
    shutil.copy(words[0], host / words[1].split(":")[1])
elif action == "ssh":
    command = option("--command") or words[words.index("--command") + 1]
    sys.exit(subprocess.run(["bash", "-c", command], cwd=host, env=os.environ | {"HOME": str(host)}).returncode)
"""


@pytest.fixture
def cloud(tmp_path):
    """(folder, environment) of a fake cloud; python3 on its hosts installs nothing, and git archives the current launch/."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (
        ("gcloud", f"#!{sys.executable}\n{GCLOUD}"),
        ("python3", '#!/bin/bash\necho "$@" >>"$CLOUD/python3"\n'),
        (
            "git",
            f'#!/bin/bash\nfor word in "$@"; do case $word in --output=*) tar -czf "${{word#*=}}" -C {LAUNCH}/.. launch ;; esac; done\n',
        ),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "CLOUD": str(tmp_path), "TMPDIR": str(tmp_path)}
    return tmp_path, os.environ | env


def launch(script, *arguments, cloud, timeout=300):
    folder, env = cloud
    command = [str(LAUNCH / f"{script}.sh"), arguments[0], "--name=n", "--zone=z", *arguments[1:]]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout)


def status(cloud) -> str:
    return launch("tpu_vm", "status", cloud=cloud).stdout.strip()


def test_run_status_and_resume_on_a_tpu_vm(cloud):
    folder, _ = cloud
    assert launch("tpu_vm", "create", cloud=cloud).returncode == 0
    assert status(cloud) == "never"
    command = [
        "bash",
        "-c",
        'printf "%s\n" "$TOKEN" "$@"; until [ -e "$CLOUD/go" ]; do sleep 0.1; done; exit 2',
        "x",
        "a b",
        "it's",
        "$HOME",
    ]
    cloud[1]["TOKEN"] = "it's $HOME"
    result = launch("tpu_vm", "run", "--env=TOKEN", "--", *command, cloud=cloud)
    assert result.returncode == 0, result.stderr
    assert not (folder / "host" / "t2t.env").exists()
    wait_for(lambda: status(cloud) == "running", "the command runs")
    again = launch("tpu_vm", "resume", "--", *command, cloud=cloud)  # two runs never share the chips
    assert again.returncode != 0
    assert (folder / "host" / "t2t_flax" / "launch" / "README.md").exists() and "-e .[tpu]" in (
        folder / "python3"
    ).read_text()
    (folder / "go").touch()
    wait_for(lambda: status(cloud) == "2", "the command has ended")
    assert (folder / "host" / "t2t.log").read_text().splitlines()[-4:] == ["it's $HOME", "a b", "it's", "$HOME"]
    assert launch("tpu_vm", "resume", "--", "true", cloud=cloud).returncode == 0
    wait_for(lambda: status(cloud) == "0", "the second run has ended")


@pytest.mark.slow
@pytest.mark.parametrize(("last", "expected"), [(0, 0), (2, 2), (3, 3), (127, 2), (1, 1)])
def test_babysit_replaces_a_lost_slice(last, expected, cloud):
    folder, _ = cloud
    # The first slice is lost during the run: all of its processes disappear at once.
    inner = f'echo x >>"$CLOUD/ran"; [ -e "$CLOUD/lost" ] && exit {last}; touch "$CLOUD/lost"; echo SUSPENDED >"$CLOUD/state"; kill -9 $PPID'
    result = launch("queued_resource", "babysit", "--poll=0", "--restarts=0", "--", "bash", "-c", inner, cloud=cloud)
    assert result.returncode == expected, result.stderr
    assert (folder / "ran").read_text() == "x\nx\n"
    calls = (folder / "calls").read_text().splitlines()
    assert [c for c in calls if c.startswith("queued-resources") and "describe" not in c] == [
        "queued-resources create", "queued-resources delete", "queued-resources create"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("old, same", [(0, True), (1, False), (2, False), (3, True)])
def test_results_of_earlier_runs_do_not_count(old, same, cloud):
    folder, _ = cloud
    command = [
        "bash",
        "-c",
        f'[ -e "$CLOUD/first" ] && touch "$CLOUD/second" && exit 0; touch "$CLOUD/first"; exit {old}',
    ]
    assert launch("queued_resource", "create", cloud=cloud).returncode == 0
    before = command if same else ["bash", "-c", f'touch "$CLOUD/first"; exit {old}']
    assert launch("tpu_vm", "run", "--restarts=0", "--", *before, cloud=cloud).returncode == 0
    wait_for(lambda: status(cloud) == str(old), "the first run has ended")
    result = launch("queued_resource", "babysit", "--poll=0", "--restarts=0", "--", *command, cloud=cloud)
    assert result.returncode == 0 and (folder / "second").exists(), result.stderr


def test_status_distinguishes_commands(cloud):
    assert launch("tpu_vm", "create", cloud=cloud).returncode == 0
    assert launch("tpu_vm", "run", "--", "true", cloud=cloud).returncode == 0
    wait_for(lambda: status(cloud) == "0", "the run has ended")
    assert launch("tpu_vm", "status", "--", "true", cloud=cloud).stdout.strip() == "0"
    assert launch("tpu_vm", "status", "--", "true ", cloud=cloud).stdout.strip() == "other-0"


@pytest.mark.parametrize("error", ["CREATE_ERROR", "DESCRIBE_ERROR"])
def test_babysit_ends_after_repeated_failures(error, cloud):
    """A wrong accelerator type or an expired login must not look like a missing slice."""
    folder, env = cloud
    env = env | {error: "ERROR: there was a problem refreshing your current auth tokens"}
    result = launch("queued_resource", "babysit", "--poll=0", "--failures=3", "--", "true", cloud=(folder, env))
    assert result.returncode == 1 and env[error] in result.stderr, result.stderr
    calls = (folder / "calls").read_text().splitlines()
    assert calls.count("queued-resources create") == (4 if error == "CREATE_ERROR" else 0)


def test_hosts_get_the_committed_files(cloud):
    folder, _ = cloud
    launch("tpu_vm", "create", cloud=cloud)
    archive = shlex.split(launch("tpu_vm", "run", "--dry-run", "--", "true", cloud=cloud).stdout.splitlines()[0])
    assert archive[0] == "git" and archive[-1] == "HEAD"
    assert f"--output={folder}/t2t_flax.XXXXXX/t2t_flax.tgz" in archive
    assert launch("tpu_vm", "run", "--", "true", cloud=cloud).returncode == 0
    assert not list(folder.glob("t2t_flax*"))  # the temporary folder is removed
