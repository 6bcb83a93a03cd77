"""launch/retry.sh: the restart loop of a host."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from helpers.processes import is_alive, wait_for

RETRY = Path(__file__).parents[2] / "launch" / "retry.sh"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def retry(*arguments, cwd):
    return subprocess.Popen(
        [str(RETRY), *arguments], cwd=cwd, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "expected", "runs"),
    [
        ("0", 0, 1), ("2", 2, 1), ("3", 3, 1), ("127", 2, 1), ("126", 2, 1), ("1 75 137 0", 0, 4), ("75 2", 2, 2), ("1 3", 3, 2),
        ("1 1 1 1 0", 1, 4), ("1 1 1+ 1 1 0", 0, 6), ("75 75 75 75 75 0", 0, 6),
    ],
)  # fmt: skip
def test_only_failures_and_stops_restart(codes, expected, runs, tmp_path):
    """1+: exit code 1, after something was saved."""
    command = (
        f'codes=({codes}); echo x >>ran; n=$(wc -l <ran); code=${{codes[n - 1]}}; [[ $code != *+ ]] || touch "$T2T_PROGRESS"; '
        'exit "${code%+}"'
    )
    process = retry(
        "--restarts=3", "--delay=0", "--exit-file=code", "--", "bash", "-c", command, cwd=tmp_path
    )
    process.communicate(timeout=300)
    assert process.returncode == expected == int((tmp_path / "code").read_text())
    assert len((tmp_path / "ran").read_text().split()) == runs


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signal_is_forwarded_and_nothing_restarts(name, tmp_path):
    command = (
        f'trap "sleep 0.3; echo saved; exit 75" {name[3:]}; touch up; while :; do sleep 0.05; done'
    )
    process = retry("--delay=0", "--exit-file=code", "--", "bash", "-c", command, cwd=tmp_path)
    wait_for((tmp_path / "up").exists, "it runs")
    process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 75 and out == "saved\n" and not err
    assert (tmp_path / "code").read_text() == "75\n"


def test_exit_file_may_be_a_device(tmp_path):
    """Root could remove it."""
    link = tmp_path / "code"
    link.symlink_to(os.devnull)
    process = retry("--exit-file=code", "--", "true", cwd=tmp_path)
    process.communicate(timeout=300)
    assert process.returncode == 0 and link.is_symlink() and Path(os.devnull).is_char_device()


def test_hangup_that_nohup_ignores_stays_ignored(tmp_path):
    command = "touch up; until [ -e go ]; do sleep 0.05; done"
    process = subprocess.Popen(
        ["nohup", RETRY, "--", "bash", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE
    )
    wait_for((tmp_path / "up").exists, "it runs")
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    process.communicate(timeout=300)
    assert process.returncode == 0


def test_command_ends_with_a_killed_launcher(tmp_path):
    process = retry("--", "bash", "-c", "echo $$ >pid; sleep 300", cwd=tmp_path)
    pid = tmp_path / "pid"
    wait_for(lambda: pid.exists() and pid.read_text().strip(), "it runs")
    process.kill()
    process.communicate(timeout=300)
    wait_for(lambda: not is_alive(int(pid.read_text())), "nothing is left that holds a lock")


def test_signal_during_the_delay_ends_the_restarts(tmp_path):
    process = retry("--delay=1000", "--", "bash", "-c", "exit 1", cwd=tmp_path)
    assert process.stderr.readline()  # it says that it waits
    process.terminate()
    process.communicate(timeout=300)
    assert process.returncode == 1


def test_user_errors_end_with_code_2(tmp_path):
    for arguments in (
        ["--"],
        [],
        ["--restarts=x", "--", "true"],
        ["--restarts=08", "--", "false"],
        ["--delay=09", "--", "false"],
        ["--retries=3", "--", "true"],
        ["--exit-file=no/such", "--", "true"],
        ["--", "no-such-program"],
    ):
        process = retry(*arguments, cwd=tmp_path)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 2 and err
