"""Environments of the benchmarks' peers.

Created once, and skipped with a reason where that fails.
"""

import glob

from helpers.refusals import refused

from benchmarks import environments as environments_lib
from benchmarks.environments import Environments, Unavailable


def test_own_interpreter_needs_no_environment(tmp_path):
    import sys

    assert Environments(str(tmp_path), install=False).python("") == sys.executable


def test_missing_environment_is_named_without_installing(tmp_path):
    with refused("torch", "--no-install", error=Unavailable):
        Environments(str(tmp_path), install=False).python("torch")


def test_environment_is_created_once(tmp_path, monkeypatch):
    commands = []

    def run(*command, cwd=None):
        commands.append(command)
        (tmp_path / "ctranslate2").mkdir(exist_ok=True)

    monkeypatch.setattr(environments_lib, "_run", run)
    for _ in range(2):
        assert Environments(str(tmp_path)).python("ctranslate2") == str(
            tmp_path / "ctranslate2" / "bin" / "python"
        )
    assert [command[1:3] for command in commands] == [("-m", "venv"), ("-m", "pip")]
    assert commands[1][-2:] == environments_lib.REQUIREMENTS["ctranslate2"]


def test_failed_installation_is_tried_once_and_gives_its_reason(tmp_path, monkeypatch):
    commands = []

    def run(*command, cwd=None):
        commands.append(command)
        raise Unavailable("pip install joeynmt-9")

    monkeypatch.setattr(environments_lib, "_run", run)
    environments = Environments(str(tmp_path))
    for _ in range(2):
        with refused("joeynmt-9", error=Unavailable):
            environments.python("joeynmt")
    assert len(commands) == 1


def test_message_of_a_failed_command_is_its_error():
    with refused("bash -c", "no-network", error=Unavailable):
        environments_lib._run(
            "bash", "-c", "echo 'ERROR: no-network' >&2; echo 'note: ...' >&2; exit 1"
        )


def test_tcmalloc_that_is_missing_or_of_debugging_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(glob, "glob", lambda _: ["/usr/lib/libtcmalloc_minimal_debug.so.4"])
    with refused("libtcmalloc", error=Unavailable):
        Environments(str(tmp_path), install=False).tcmalloc()
    monkeypatch.setattr(
        glob, "glob", lambda _: ["/usr/lib/libtcmalloc.so.4", "/usr/lib/libtcmalloc_minimal.so.4"]
    )
    assert (
        Environments(str(tmp_path), install=False).tcmalloc() == "/usr/lib/libtcmalloc_minimal.so.4"
    )
