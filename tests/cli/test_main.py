"""Common to all commands: help, usage, missing packages and file system errors."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.refusals import assert_names, refused_command

from t2t_flax.__main__ import COMMANDS, main
from t2t_flax.cli import arguments, explain
from t2t_flax.config import Config, override, resolve, to_config_dict
from t2t_flax.registry import FLAGS, Flag, load_extensions

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0 and len(out) > 150 and f"python -m t2t_flax {command}" in out


def test_missing_packages_are_reported_with_install_command():
    """Without site-packages, by every command."""
    start = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import t2t_flax.__main__ as m\n"
        "for command in sys.argv[1:]: print(m.main([command]))"
    )
    bare = [sys.executable, "-I", "-S", "-c", start, *COMMANDS]
    result = subprocess.run(bare, capture_output=True, text=True, timeout=300)
    assert result.stdout.split() == ["2"] * len(COMMANDS) and "Traceback" not in result.stderr, (
        result.stderr
    )
    for command, line in zip(COMMANDS, result.stderr.splitlines(), strict=True):
        assert_names(line, command, sys.executable, "requirements.txt")


def fail_with(number, monkeypatch):
    """Let `explain` fail with an error of the system."""

    def run(words):
        raise OSError(number, "what it says", "a.en/below")

    monkeypatch.setattr(explain, "run", run)


@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG],
)
def test_full_disk_and_impossible_paths_are_user_errors(number, monkeypatch):
    fail_with(number, monkeypatch)
    refused_command(["explain"], "a.en/below")


def test_failing_disk_is_a_failure(monkeypatch):
    """A launcher restarts the run then."""
    fail_with(errno.EIO, monkeypatch)
    with pytest.raises(OSError):
        main(["explain"])


def test_help_lists_commands_and_unknown_ones_are_refused(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)
    refused_command(["trian"], "'trian'")


@pytest.mark.parametrize(
    "command",
    [
        ["translate", "--workdir=w", "--input=lines", "--output={}"],
        ["score", "--workdir=w", "--source=lines", "--target=lines", "--output={}"],
        ["attend", "--workdir=w", "--source=a", "--output={}"],
        ["attend", "--workdir=w", "--source=a", "--output=a.npz", "--picture={}"],
        ["average", "--workdir=w", "--average=2", "--output={}"],
        ["compare", "a.json", "b.json", "--table={}"],
        ["prepare", f"--config={ROOT / 'configs' / 'toy.py'}", "--workdir={}"],
        ["train", f"--config={ROOT / 'configs' / 'toy.py'}", "--workdir={}"],
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
def test_output_where_nothing_can_be_created_is_a_user_error(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines").write_text("a\n")
    for path in ("/proc/out.png", "/proc/no/such/folder/out.png", "lines/out.png"):
        refused_command([word.format(path) for word in command], f"{command[-1].format(path)}")
    assert [each.name for each in tmp_path.iterdir()] == ["lines"]


def test_a_flag_that_is_given_twice_is_refused():
    refused_command(["train", "--workdir=runs/a", "--workdir=runs/b"], "--workdir")


def test_a_flag_without_a_value_turns_its_key_on(monkeypatch):
    load_extensions()
    monkeypatch.setitem(
        FLAGS, "--joint", Flag("some", "one vocabulary", key="data.joint_vocabulary")
    )
    parser = arguments.parser("some", "")
    arguments.add_flags(parser, "some")
    overrides = arguments.parse(parser, ["--joint"])[1]
    assert resolve(override(to_config_dict(Config()), overrides)).data.joint_vocabulary is True
    assert arguments.parse(parser, [])[1] == {}
