"""launch/local_pod.sh with small commands in place of a training run: labels, exit codes, restarts, signals, no orphans."""

import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

POD = Path(__file__).parents[2] / "launch" / "local_pod.sh"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def start(*arguments, cwd, start_new_session=False, **env):
    own = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "T2T_"))}
    return subprocess.Popen(
        [str(POD), *map(str, arguments)],
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
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    return out, err


def wait_for(condition, what):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, f"not within 20 s: {what}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(folder) -> list[int]:
    return [int(text) for p in Path(folder).glob("pid.*") if (text := p.read_text().strip())]


# Stays, with a child that stays; each says where it is. `exec` where one process is enough.
STAYS = 'sleep 100 & echo $! >"pid.$T2T_PROCESS_ID.child"; echo $$ >"pid.$T2T_PROCESS_ID"; wait'


def test_each_process_knows_its_place_and_its_lines_are_labelled(tmp_path):
    command = 'echo "$T2T_PROCESS_ID of $T2T_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS on $JAX_PLATFORMS"; echo oh >&2'
    out, err = pod(3, "--", "bash", "-c", command, cwd=tmp_path)
    lines = sorted(out.splitlines())
    address = lines[0].split()[5]
    assert lines == [f"[{i}] {i} of 3 at {address} on cpu" for i in range(3)]
    assert address.startswith("127.0.0.1:") and 1024 < int(address.split(":")[1]) < 32768
    assert sorted(err.splitlines()) == [f"[{i}] oh" for i in range(3)]
    out, _ = pod(1, "--", "bash", "-c", 'echo "$JAX_PLATFORMS"', cwd=tmp_path, JAX_PLATFORMS="tpu")
    assert out == "[0] tpu\n"


def test_lines_come_whole_and_at_once_without_the_chatter_of_gloo(tmp_path):
    command = (
        r"""printf '[Gloo] Rank 0 is connected to 1 peer ranks.\n  spaces  and \\ kept\nhalf '; sleep 0.2; """
        r"""printf 'a line\nno end'; touch "said.$T2T_PROCESS_ID"; until [ -e go ]; do sleep 0.05; done"""
    )
    process = start(2, "--", "bash", "-c", command, cwd=tmp_path)
    first = sorted(process.stdout.readline() for _ in range(4))  # while the processes still run
    assert first == sorted(f"[{i}] {text}\n" for i in range(2) for text in (r"  spaces  and \ kept", "half a line"))
    assert process.poll() is None
    (tmp_path / "go").touch()
    out, _ = process.communicate(timeout=20)
    assert sorted(out.splitlines()) == ["[0] no end", "[1] no end"]


def test_arguments_survive(tmp_path):
    words = ["two words", "it's", '"quoted"', "$HOME", "a\\b", "*", "", "semi;colon", "--flag=x y"]
    out, _ = pod(1, "--", "bash", "-c", r'printf "<%s>\n" "$@"', "zero", *words, cwd=tmp_path)
    assert out.splitlines() == [f"[0] <{word}>" for word in words]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ("0 0 0", 0), ("75 75 75", 75), ("0 75 0", 75), ("75 1 75", 1), ("0 1 0", 1), ("0 0 134", 1), ("137 75 0", 1),
        ("2 2 2", 2), ("0 2 75", 2), ("1 2 134", 2), ("3 3 3", 3), ("0 3 1", 3), ("3 2 0", 2), ("0 127 0", 2), ("13 0 0", 1), ("0 12 0", 1), ("22 0 0", 1), ("175 75 75", 1),
    ],
)  # fmt: skip
def test_exit_codes(codes, expected, tmp_path):
    command = f'codes=({codes}); exit "${{codes[T2T_PROCESS_ID]}}"'
    _, err = pod(3, "--", "bash", "-c", command, cwd=tmp_path, code=expected)
    for i, code in enumerate(codes.split()):
        assert (f"process {i} of 3 ended with exit code {code}\n" in err) == (code != "0")


def test_restarts_until_all_have_finished_on_another_number_of_processes(tmp_path):
    command = 'touch "ran.$T2T_NUM_PROCESSES.$T2T_PROCESS_ID"; echo "$JAX_COORDINATOR_ADDRESS"; [ "$T2T_NUM_PROCESSES" = 3 ] || exit 75'
    out, err = pod(2, "--restarts=4", "--restart-with=3", "--", "bash", "-c", command, cwd=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ran.2.0", "ran.2.1", "ran.3.0", "ran.3.1", "ran.3.2"]
    assert err.count("local_pod: restart ") == 1 and "restart 1 of 4, with 3 processes" in err
    assert len({line.split()[1] for line in out.splitlines()}) == 2  # a port for each start


def test_restarts_end(tmp_path):
    command = 'echo x >>"ran.$T2T_PROCESS_ID"; exit 1'
    _, err = pod(2, "--restarts=2", "--", "bash", "-c", command, cwd=tmp_path, code=1)
    assert (tmp_path / "ran.0").read_text() == "x\n" * 3 and err.count("local_pod: restart ") == 2


@pytest.mark.parametrize(("code", "expected"), [(2, 2), (3, 3), (127, 2)])
def test_a_mistake_and_a_divergence_are_never_restarted(code, expected, tmp_path):
    pod(2, "--restarts=5", "--", "bash", "-c", f"echo x >>ran; exit {code}", cwd=tmp_path, code=expected)
    assert (tmp_path / "ran").read_text() == "x\nx\n"


def test_when_one_is_killed_the_others_get_the_grace_and_are_then_killed(tmp_path):
    command = f'[ "$T2T_PROCESS_ID" = 0 ] || {{ until [ -s pid.0 ]; do sleep 0.05; done; kill -9 $$; }}; {STAYS}'
    began = time.monotonic()
    _, err = pod(2, "--grace=2", "--", "bash", "-c", command, cwd=tmp_path, code=1)
    assert 2 <= time.monotonic() - began < 15
    assert err.splitlines()[0] == "local_pod: process 1 of 2 ended with exit code 137"
    assert "killing the rest: 0" in err and "Killed " not in err
    assert len(pids(tmp_path)) == 2 and not any(map(alive, pids(tmp_path)))


def test_who_ends_within_the_grace_is_not_killed(tmp_path):
    command = '[ "$T2T_PROCESS_ID" = 1 ] && exit 75; sleep 1; echo saved; exit 75'
    out, err = pod(2, "--grace=20", "--", "bash", "-c", command, cwd=tmp_path, code=75)
    assert out == "[0] saved\n" and "killing" not in err


def test_what_a_killed_process_leaves_behind_does_not_hold_the_pod(tmp_path):
    command = 'sleep 100 & echo $! >"pid.$T2T_PROCESS_ID"; kill -9 $$'
    pod(2, "--", "bash", "-c", command, cwd=tmp_path, code=1)
    assert len(pids(tmp_path)) == 2 and not any(map(alive, pids(tmp_path)))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signals_reach_all_and_nothing_restarts(name, tmp_path):
    command = f'trap "sleep 0.3; echo saved on {name}; kill %1; exit 75" {name[3:]}; {STAYS}'
    process = start(2, "--restarts=3", "--", "bash", "-c", command, cwd=tmp_path)
    wait_for(lambda: len(pids(tmp_path)) == 4, "both started")
    process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=20)
    assert process.returncode == 75, err
    assert sorted(out.splitlines()) == [f"[0] saved on {name}", f"[1] saved on {name}"]
    assert f"{name} goes to all processes" in err and "restart" not in err
    assert not any(map(alive, pids(tmp_path)))


def test_ctrl_c_reaches_all_once_the_launcher_has_it(tmp_path):
    """A terminal sends SIGINT to the launcher's whole process group: labels, guard and `sleep` too."""
    command = f'trap "sleep 0.3; echo saved; kill %1; exit 75" INT; {STAYS}'
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        process = start(2, "--restarts=3", "--", "bash", "-c", command, cwd=folder, start_new_session=True)
        wait_for(lambda folder=folder: len(pids(folder)) == 4, "both started")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 75, err
        assert sorted(out.splitlines()) == ["[0] saved", "[1] saved"] and not any(map(alive, pids(folder)))


def test_who_does_not_save_on_a_signal_is_no_75(tmp_path):
    process = start(2, "--restarts=3", "--", "bash", "-c", STAYS, cwd=tmp_path)
    wait_for(lambda: len(pids(tmp_path)) == 4, "both started")
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 1


def test_the_second_signal_kills(tmp_path):
    process = start(
        2,
        "--",
        "bash",
        "-c",
        f'trap "touch heard.$T2T_PROCESS_ID" TERM; {STAYS}; while :; do sleep 1; done',
        cwd=tmp_path,
    )
    wait_for(lambda: len(pids(tmp_path)) == 4, "both started")
    process.terminate()
    wait_for(lambda: len(list(tmp_path.glob("heard.*"))) == 2, "both heard the first")
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 1 and not any(map(alive, pids(tmp_path)))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_no_orphans_when_the_launcher_itself_is_killed(tmp_path):
    process = start(3, "--restarts=3", "--", "bash", "-c", f"trap '' TERM INT HUP; {STAYS}", cwd=tmp_path)
    wait_for(lambda: len(pids(tmp_path)) == 6, "all started")
    process.kill()
    process.communicate(timeout=20)  # ends when nobody holds the output any more
    wait_for(lambda: not any(map(alive, pids(tmp_path))), "no process of the pod is left")


def test_a_dry_run_prints_and_runs_nothing(tmp_path):
    out, err = pod(2, "--restarts=1", "--dry-run", "--", "touch", "a file", cwd=tmp_path)
    assert not list(tmp_path.iterdir()) and not err
    for i, line in enumerate(out.splitlines()):
        words = shlex.split(line)
        assert words[:3] == ["env", "T2T_NUM_PROCESSES=2", f"T2T_PROCESS_ID={i}"] and words[-2:] == ["touch", "a file"]
        assert words[3].startswith("JAX_COORDINATOR_ADDRESS=127.0.0.1:") and "JAX_PLATFORMS=cpu" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "N is ''"), (["0", "--", "true"], "N is '0', expected a number, 1 or more"), (["x", "--", "true"], "N is 'x'"),
        (["2", "--restart=1", "--", "true"], "unknown flag --restart=1"), (["2", "true"], "unknown flag true"),
        (["2", "--restarts=-1", "--", "true"], "--restarts is '-1'"), (["2", "--restarts=", "--", "true"], "--restarts is ''"),
        (["2", "--restart-with=0", "--", "true"], "--restart-with is '0', expected a number, 1 or more"),
        (["2", "--grace=1s", "--", "true"], "--grace is '1s'"), (["2"], "it follows --"), (["2", "--"], "it follows --"),
        (["2", "--", "no-such-program"], "there is no command 'no-such-program'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(arguments, message, tmp_path):
    out, err = pod(*arguments, cwd=tmp_path, code=2)
    assert not out and message in err and "launch/local_pod.sh N [--restarts=R]" in err
