"""launch/tpu_vm.sh and queued_resource.sh with a stand-in for gcloud, and folders as hosts."""

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from helpers.processes import wait_for

LAUNCH = Path(__file__).parents[2] / "launch"
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "flock", "tar"))), reason="needs bash, flock and tar"
)
# Hosts, simulated by folders; the queued resource's state is a file. A new slice has empty folders.
GCLOUD = """
import os, pathlib, shutil, subprocess, sys
cloud = pathlib.Path(os.environ["CLOUD"])
kind, action, *words = sys.argv[3:]
state, hosts = cloud / "state", [cloud / name for name in os.environ["HOSTS"].split()]
print(kind, action, file=(cloud / "calls").open("a"))
option = lambda name: next((w.split("=", 1)[1] for w in words if w.startswith(name + "=")), None)
if (kind, action) == ("queued-resources", "describe"):
    if error := os.environ.get("DESCRIBE_ERROR"):
        sys.exit(error)
    sys.exit(print(state.read_text().strip()) if state.exists() else "ERROR: NOT_FOUND: Resource was not found")
elif action == "create" and "CREATE_ERROR" in os.environ:
    sys.exit(os.environ["CREATE_ERROR"])
elif action == "create":
    for host in hosts:
        host.mkdir()
    state.write_text("ACTIVE")
elif action == "delete":
    for host in hosts:
        shutil.rmtree(host)
    state.unlink()
elif action == "scp":
    for host in hosts:
        shutil.copy(words[0], host / words[1].split(":")[1])
elif action == "ssh":
    command = option("--command") or words[words.index("--command") + 1]
    hosts = hosts if option("--worker") == "all" else [hosts[int(option("--worker"))]]
    env = lambda host: os.environ | {"HOME": str(host), "HOST": host.name}
    sys.exit(max(subprocess.run(["bash", "-c", command], cwd=host, env=env(host)).returncode for host in hosts))
"""
INSTALL = """echo "$@" >>"$CLOUD/python3"
until [ ! -e "$CLOUD/install_slowly" ]; do sleep 0.05; done
exit "${INSTALL_CODE-0}"
"""


@pytest.fixture
def cloud(tmp_path):
    """(folder, environment) of a fake cloud.

    Python3 on its hosts installs nothing, and git archives the current launch/.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (
        ("gcloud", f"#!{sys.executable}\n{GCLOUD}"),
        ("python3", f'#!/bin/bash\n[ "$1" = -m ] || exec {sys.executable} "$@"\n{INSTALL}'),
        (
            "git",
            f'#!/bin/bash\nfor word in "$@"; do case $word in --output=*) tar -czf "${{word#*=}}" -C {LAUNCH}/.. launch ;; esac; done\n',
        ),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "CLOUD": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "HOSTS": "host",
    }
    return tmp_path, os.environ | env


def launch(script, *arguments, cloud, timeout=300):
    folder, env = cloud
    command = [str(LAUNCH / f"{script}.sh"), arguments[0], "--name=n", "--zone=z", *arguments[1:]]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout
    )


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
    # Two runs never share the chips.
    again = launch("tpu_vm", "resume", "--", *command, cloud=cloud)
    assert again.returncode != 0
    assert (folder / "host" / "t2t_flax" / "launch" / "README.md").exists() and "-e .[tpu]" in (
        folder / "python3"
    ).read_text()
    (folder / "go").touch()
    wait_for(lambda: status(cloud) == "2", "the command has ended")
    assert (folder / "host" / "t2t.log").read_text().splitlines()[-4:] == [
        "it's $HOME",
        "a b",
        "it's",
        "$HOME",
    ]
    assert launch("tpu_vm", "resume", "--", "true", cloud=cloud).returncode == 0
    wait_for(lambda: status(cloud) == "0", "the second run has ended")


@pytest.mark.slow
@pytest.mark.parametrize(("last", "expected"), [(0, 0), (2, 2), (3, 3), (127, 2), (1, 1)])
def test_babysit_replaces_a_lost_slice(last, expected, cloud):
    folder, _ = cloud
    # The first slice is lost during the run: all of its processes disappear at once.
    inner = f'echo x >>"$CLOUD/ran"; [ -e "$CLOUD/lost" ] && exit {last}; touch "$CLOUD/lost"; echo SUSPENDED >"$CLOUD/state"; kill -9 $PPID'
    result = launch(
        "queued_resource",
        "babysit",
        "--poll=0",
        "--restarts=0",
        "--",
        "bash",
        "-c",
        inner,
        cloud=cloud,
    )
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
    result = launch(
        "queued_resource", "babysit", "--poll=0", "--restarts=0", "--", *command, cloud=cloud
    )
    assert result.returncode == 0 and (folder / "second").exists(), result.stderr


def test_host_that_reboots_gets_its_command_again(cloud):
    """Processes of the second host are killed, its files stay; the first host's goes on."""
    folder, env = cloud
    env["HOSTS"] = "host other"
    inner = 'echo $PPID >>"$CLOUD/ran.$HOST"; until [ -e "$CLOUD/go" ]; do sleep 0.05; done'
    babysit = [
        str(LAUNCH / "queued_resource.sh"),
        "babysit",
        "--name=n",
        "--zone=z",
        "--poll=0",
        "--",
        "bash",
        "-c",
        inner,
    ]
    process = subprocess.Popen(babysit, cwd=folder, env=env, stderr=subprocess.DEVNULL)

    def ran(host):
        return (
            (folder / f"ran.{host}").read_text().split()
            if (folder / f"ran.{host}").exists()
            else []
        )

    wait_for(lambda: ran("host") and ran("other"), "both hosts run it")
    psutil.Process(int(ran("other")[0])).kill()  # retry.sh; its guard ends the command
    wait_for(lambda: len(ran("other")) == 2, "the second host runs it again")
    (folder / "go").touch()
    assert process.wait(300) == 0 and len(ran("host")) == 1


def test_other_hosts_tell_how_the_command_ended(cloud):
    cloud[1]["HOSTS"] = "host other"
    command = ["bash", "-c", '[ "$HOST" = host ] || exit 2; exit 1']
    result = launch(
        "queued_resource", "babysit", "--poll=0", "--restarts=0", "--", *command, cloud=cloud
    )
    assert result.returncode == 2, result.stderr


def test_second_run_is_refused_while_the_first_is_installed(cloud):
    folder, env = cloud
    assert launch("tpu_vm", "create", cloud=cloud).returncode == 0
    (folder / "install_slowly").touch()
    run = [LAUNCH / "tpu_vm.sh", "run", "--name=n", "--zone=z", "--restarts=0", "--"]
    first = subprocess.Popen(
        [*run, "sh", "-c", "exit 3"], cwd=folder, env=env, stderr=subprocess.DEVNULL
    )
    wait_for((folder / "python3").exists, "it is installed")
    assert status(cloud) == "running"
    second = subprocess.Popen([*run, "true"], cwd=folder, env=env, stderr=subprocess.DEVNULL)
    wait_for(
        lambda: (
            second.poll() is not None or (folder / "python3").read_text().count("pip install") > 1
        ),
        "its end",
    )
    (folder / "install_slowly").unlink()
    assert second.wait(300) == 1 and first.wait(300) == 0
    wait_for(lambda: status(cloud) != "running", "the first has ended")
    assert status(cloud) == "3"


@pytest.mark.parametrize("failure", ["INSTALL_CODE", "a running command"])
def test_secrets_do_not_stay_on_hosts_after_a_failed_start(failure, cloud):
    folder, env = cloud
    assert launch("tpu_vm", "create", cloud=cloud).returncode == 0
    env |= {"TOKEN": "secret", "INSTALL_CODE": "0" if failure == "a running command" else "1"}
    with (folder / "host" / "t2t.lock").open("w") as lock:
        if failure == "a running command":
            fcntl.flock(lock, fcntl.LOCK_EX)
        result = launch("tpu_vm", "run", "--env=TOKEN", "--", "true", cloud=cloud)
    assert result.returncode != 0 and not (folder / "host" / "t2t.env").exists(), result.stderr
    copied = (folder / "host" / "t2t_flax.tgz").exists()
    assert copied == (failure == "INSTALL_CODE"), "nothing is copied to a host that is in use"


def test_secrets_are_removed_from_hosts_that_were_not_reached(cloud):
    """The first copy of two arrives, and the command is never sent."""
    folder, env = cloud
    assert launch("tpu_vm", "create", cloud=cloud).returncode == 0
    gcloud = folder / "bin" / "gcloud"
    gcloud.write_text(
        gcloud.read_text()
        + "if action == 'scp' and 't2t.env' in words[0]: sys.exit('cannot reach a host')\n"
    )
    result = launch(
        "tpu_vm", "run", "--env=TOKEN", "--", "true", cloud=(folder, env | {"TOKEN": "secret"})
    )
    assert result.returncode != 0 and not (folder / "host" / "t2t.env").exists(), result.stderr


def test_values_of_variables_arrive_as_they_are(cloud):
    folder, env = cloud
    assert launch("tpu_vm", "create", cloud=cloud).returncode == 0
    values = {"OPTION": "-n", "LINES_": "two\nlines\n\n", "QUOTES": 'it\'s \\ "$HOME" `x`'}
    show = [
        sys.executable,
        "-c",
        f"import os; print(repr([os.environ[name] for name in {list(values)}]))",
    ]
    call = ["run", f"--env={','.join(values)}", "--", *show]
    assert launch("tpu_vm", *call, cloud=(folder, env | values)).returncode == 0
    wait_for(lambda: status(cloud) == "0", "the run has ended")
    assert (folder / "host" / "t2t.log").read_text().splitlines()[-1] == repr(list(values.values()))


def test_status_distinguishes_commands(cloud):
    assert launch("tpu_vm", "create", cloud=cloud).returncode == 0
    assert launch("tpu_vm", "run", "--", "true", cloud=cloud).returncode == 0
    wait_for(lambda: status(cloud) == "0", "the run has ended")
    assert launch("tpu_vm", "status", "--", "true", cloud=cloud).stdout.strip() == "0"
    assert launch("tpu_vm", "status", "--", "true ", cloud=cloud).stdout.strip() == "other-0"


def test_babysit_needs_a_commit_before_it_pays_for_a_slice(cloud):
    folder, _ = cloud
    (folder / "bin" / "git").write_text("#!/bin/sh\nexit 128\n")
    result = launch(
        "queued_resource", "babysit", "--poll=0", "--failures=1", "--", "true", cloud=cloud
    )
    assert result.returncode == 2 and "commit" in result.stderr and not (folder / "calls").exists()


@pytest.mark.parametrize("error", ["CREATE_ERROR", "DESCRIBE_ERROR"])
def test_babysit_ends_after_repeated_failures(error, cloud):
    """A wrong accelerator type or an expired login must not look like a missing slice."""
    folder, env = cloud
    env = env | {error: "ERROR: there was a problem refreshing your current auth tokens"}
    result = launch(
        "queued_resource", "babysit", "--poll=0", "--failures=3", "--", "true", cloud=(folder, env)
    )
    assert result.returncode == 1 and env[error] in result.stderr, result.stderr
    calls = (folder / "calls").read_text().splitlines()
    assert calls.count("queued-resources create") == (4 if error == "CREATE_ERROR" else 0)


def test_hosts_get_the_committed_files(cloud):
    folder, _ = cloud
    launch("tpu_vm", "create", cloud=cloud)
    archive = shlex.split(
        launch("tpu_vm", "run", "--dry-run", "--", "true", cloud=cloud).stdout.splitlines()[1]
    )
    assert archive[0] == "git" and archive[-1] == "HEAD"
    assert f"--output={folder}/t2t_flax.XXXXXX/t2t_flax.tgz" in archive
    assert launch("tpu_vm", "run", "--", "true", cloud=cloud).returncode == 0
    assert not list(folder.glob("t2t_flax*"))  # the temporary folder is removed


def test_babysit_gives_up_where_the_command_never_runs(cloud):
    """What starts it is killed at once on each host, before it can write how it ended."""
    folder, env = cloud
    (folder / "bin" / "nohup").write_text("#!/bin/sh\n")
    (folder / "bin" / "nohup").chmod(0o755)
    result = launch(
        "queued_resource", "babysit", "--poll=0", "--failures=4", "--", "true", cloud=cloud
    )
    assert result.returncode == 1, result.stderr
    calls = (folder / "calls").read_text().splitlines()
    assert calls.count("tpu-vm scp") == 2 and calls.count("queued-resources create") == 1
