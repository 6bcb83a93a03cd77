"""launch/local_pod.sh with small commands instead of training.

Labels, exit codes, restarts, signals, no orphans.
"""

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers.cloud_programs import LAUNCH, launch_module
from helpers.processes import is_alive, wait_for
from helpers.refusals import assert_names

local_pod = launch_module("local_pod")


def start(*arguments, cwd, start_new_session=False, **env):
    own = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "T2T_"))}
    return subprocess.Popen(
        [str(LAUNCH / "local_pod.sh"), *map(str, arguments)],
        cwd=cwd,
        env=own | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )


def pod(*arguments, cwd, code=0, **env):
    """Runs the launcher to its end; returns (standard output, standard error)."""
    process = start(*arguments, cwd=cwd, **env)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    return out, err


def pids(folder) -> list[int]:
    return [int(text) for p in Path(folder).glob("pid.*") if (text := p.read_text().strip())]


WAITS = 'sleep 100 & echo $! >"pid.$T2T_PROCESS_ID.child"; echo $$ >"pid.$T2T_PROCESS_ID"; wait'
"""Waits, with a child that waits; both write their process numbers."""


def test_processes_have_ranks_and_labelled_output(tmp_path):
    command = (
        r"""echo "$T2T_PROCESS_ID of $T2T_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS on $JAX_PLATFORMS"; echo err >&2; """
        r"""printf '[Gloo] Rank 0 is connected.\n  "spaces"  and \\ kept\nno end'; printf ' <%s>' "$@"; exit $T2T_PROCESS_ID"""
    )
    words = ["two words", "it's", '"quoted"', "$HOME", "a\\b", "*", "", "--flag=x y"]
    out, err = pod(2, "--", "bash", "-c", command, "zero", *words, cwd=tmp_path, code=1)
    address = out.splitlines()[0].split()[5]
    assert address.startswith("127.0.0.1:") and 1024 < int(address.split(":")[1]) < 32768
    arguments = "".join(f" <{word}>" for word in words)
    lines = [
        [f"{i} of 2 at {address} on cpu", '  "spaces"  and \\ kept', f"no end{arguments}"]
        for i in range(2)
    ]
    assert sorted(out.splitlines()) == sorted(
        f"[{i}] {line}" for i in range(2) for line in lines[i]
    )
    assert sorted(err.splitlines())[:2] == ["[0] err", "[1] err"]


@pytest.mark.parametrize(
    "number, group",
    [
        (signal.SIGTERM, False),
        (signal.SIGHUP, False),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.slow),
    ],
)
def test_signal_reaches_each_process_once_and_nothing_restarts(number, group, tmp_path):
    """A terminal sends SIGINT to the launcher's whole process group, its guard included."""
    command = f'trap "sleep 0.3; echo saved; kill %1; exit 75" {number.name[3:]}; {WAITS}'
    process = start(
        2, "--restarts=3", "--", "bash", "-c", command, cwd=tmp_path, start_new_session=True
    )
    wait_for(lambda: len(pids(tmp_path)) == 4, "both started")
    (os.killpg if group else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 75, err
    assert sorted(out.splitlines()) == ["[0] saved", "[1] saved"] and not any(
        map(is_alive, pids(tmp_path))
    )
    assert_names(err, number.name)


def test_dry_run_prints_the_commands_only(tmp_path):
    out, err = pod(
        2, "--restarts=1", "--dry-run", "--", "touch", "a file", cwd=tmp_path, JAX_PLATFORMS="tpu"
    )
    assert not list(tmp_path.iterdir()) and not err
    for i, line in enumerate(out.splitlines()):
        words = shlex.split(line)
        assert words[:3] == ["env", "T2T_NUM_PROCESSES=2", f"T2T_PROCESS_ID={i}"] and words[
            -2:
        ] == ["touch", "a file"]
        assert (
            words[3].startswith("JAX_COORDINATOR_ADDRESS=127.0.0.1:")
            and "JAX_PLATFORMS=tpu" in words
        )


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("", "N"), ("0 -- true", "N"), ("x -- true", "'x'"), ("2 --restart=1 -- true", "--restart=1"), ("2 true", "true"),
        ("2 --restarts=-1 -- true", "--restarts"), ("2 --restarts= -- true", "--restarts"), ("2", "--"), ("2 --", "--"),
        ("2 --restart-with=0 -- true", "--restart-with"), ("2 --grace=1_0 -- true", "1_0"), ("2 -- no-such-program", "no-such-program"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(arguments, name, capsys):
    with pytest.raises(SystemExit) as error:
        local_pod.parse(arguments.split())
    assert error.value.code == 2
    assert_names(capsys.readouterr().err, name)


def test_command_that_cannot_be_started_is_a_user_error(tmp_path):
    script = tmp_path / "script"
    script.write_text("no interpreter is named here\n")
    script.chmod(0o755)
    _, err = pod(2, "--restarts=3", "--", script, cwd=tmp_path, code=2)
    assert_names(err, str(script))
    assert "Traceback" not in err


@pytest.mark.slow
class TestSlow:
    """Restarts, kills and signals at awkward moments."""

    def test_complete_lines_appear_at_once(self, tmp_path):
        command = (
            "printf 'half '; sleep 0.2; printf 'a line\\n'; until [ -e go ]; do sleep 0.05; done"
        )
        process = start(2, "--", "bash", "-c", command, cwd=tmp_path)
        assert sorted(process.stdout.readline() for _ in range(2)) == [
            "[0] half a line\n",
            "[1] half a line\n",
        ]
        assert process.poll() is None
        (tmp_path / "go").touch()
        process.communicate(timeout=300)

    def test_restarts_with_another_number_of_processes_until_all_finish(self, tmp_path):
        command = (
            'touch "ran.$T2T_NUM_PROCESSES.$T2T_PROCESS_ID"; echo "$JAX_COORDINATOR_ADDRESS"; '
            '[ "$T2T_NUM_PROCESSES" = 3 ] || exit 75'
        )
        out, _ = pod(
            2, "--restarts=4", "--restart-with=3", "--", "bash", "-c", command, cwd=tmp_path
        )
        assert sorted(p.name for p in tmp_path.iterdir()) == [
            "ran.2.0",
            "ran.2.1",
            "ran.3.0",
            "ran.3.1",
            "ran.3.2",
        ]
        assert len({line.split()[1] for line in out.splitlines()}) == 2, (
            "each start uses a new port"
        )

    @pytest.mark.parametrize(
        ("code", "starts", "expected"), [(1, 3, 1), (2, 1, 2), (3, 1, 3), (127, 1, 2)]
    )
    def test_restarts_are_limited_and_only_for_failures(self, code, starts, expected, tmp_path):
        command = f'echo x >>"ran.$T2T_PROCESS_ID"; exit {code}'
        pod(2, "--restarts=2", "--", "bash", "-c", command, cwd=tmp_path, code=expected)
        assert (tmp_path / "ran.0").read_text() == "x\n" * starts

    def test_other_processes_are_killed_after_the_grace_period(self, tmp_path):
        command = f'[ "$T2T_PROCESS_ID" = 0 ] || {{ until [ -s pid.0 ]; do sleep 0.05; done; kill -9 $$; }}; {WAITS}'
        start = time.monotonic()
        pod(2, "--grace=2", "--", "bash", "-c", command, cwd=tmp_path, code=1)
        assert time.monotonic() - start >= 2
        assert len(pids(tmp_path)) == 2 and not any(map(is_alive, pids(tmp_path)))

    def test_other_processes_may_finish_within_the_grace_period(self, tmp_path):
        command = '[ "$T2T_PROCESS_ID" = 1 ] && exit 75; sleep 1; echo saved; exit 75'
        assert (
            pod(2, "--grace=20", "--", "bash", "-c", command, cwd=tmp_path, code=75)[0]
            == "[0] saved\n"
        )

    def test_children_of_a_killed_process_are_killed(self, tmp_path):
        pod(
            2,
            "--",
            "bash",
            "-c",
            'sleep 100 & echo $! >"pid.$T2T_PROCESS_ID"; kill -9 $$',
            cwd=tmp_path,
            code=1,
        )
        assert len(pids(tmp_path)) == 2 and not any(map(is_alive, pids(tmp_path)))

    def test_signalled_process_that_does_not_save_is_a_failure(self, tmp_path):
        process = start(2, "--restarts=3", "--", "bash", "-c", WAITS, cwd=tmp_path)
        wait_for(lambda: len(pids(tmp_path)) == 4, "both started")
        process.terminate()
        process.communicate(timeout=300)
        assert process.returncode == 1

    def test_second_signal_kills(self, tmp_path):
        command = f'trap "touch heard.$T2T_PROCESS_ID" TERM; {WAITS}; while :; do sleep 1; done'
        process = start(2, "--", "bash", "-c", command, cwd=tmp_path)
        wait_for(lambda: len(pids(tmp_path)) == 4, "both started")
        process.terminate()
        wait_for(lambda: len(list(tmp_path.glob("heard.*"))) == 2, "both received the first")
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=300)
        assert process.returncode == 1 and not any(map(is_alive, pids(tmp_path)))

    def test_no_orphans_when_the_launcher_is_killed(self, tmp_path):
        process = start(
            3, "--restarts=3", "--", "bash", "-c", f"trap '' TERM INT HUP; {WAITS}", cwd=tmp_path
        )
        wait_for(lambda: len(pids(tmp_path)) == 6, "all started")
        process.kill()
        process.communicate(timeout=300)  # returns when all writers of the output have closed it
        wait_for(lambda: not any(map(is_alive, pids(tmp_path))), "no process of the pod is left")
