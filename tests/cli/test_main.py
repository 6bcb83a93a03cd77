"""Common to all commands: help, usage, missing packages and file system errors."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from t2t_flax.__main__ import COMMANDS, main
from t2t_flax.cli import arguments
from t2t_flax.config import Config, override, resolve, to_config_dict
from t2t_flax.registry import FLAGS, Flag, load_extensions

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0 and len(out) > 150 and f"python -m t2t_flax {command}" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_packages_are_reported_with_install_command(command):
    start = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import t2t_flax.__main__ as m; sys.exit(m.main([{command!r}]))"
    )
    bare = [sys.executable, "-I", "-S", "-c", start]
    result = subprocess.run(bare, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2 and "Traceback" not in result.stderr, result.stderr
    assert "is not installed in" in result.stderr and "pip install -r requirements.txt" in result.stderr


@pytest.mark.parametrize("number, code", [(errno.ENOSPC, 2), (errno.EDQUOT, 2), (errno.EROFS, 2), (errno.EIO, 1)])
def test_full_disk_is_reported_without_traceback(number, code):
    """An I/O error that the user cannot fix is a failure instead, after which a launcher restarts the run."""
    start = (
        "import sys, t2t_flax.__main__ as m, t2t_flax.cli.explain as c\n"
        f"def run(words): raise OSError({number}, 'what it says', '/runs/metrics.jsonl')\n"
        "c.run = run; sys.exit(m.main(['explain']))"
    )
    result = subprocess.run([sys.executable, "-c", start], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == code and ("Traceback" in result.stderr) == (code == 1), result.stderr
    assert "what it says: '/runs/metrics.jsonl'" in result.stderr
    assert ("Free disk space or fix the permissions, then rerun the same command." in result.stderr) == (code == 2)


def test_help_lists_commands_and_unknown_ones_are_refused(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name, command in COMMANDS.items() if not command.hidden)
    assert main(["trian"]) == 2
    assert "unknown command 'trian'" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG])
def test_impossible_path_is_a_user_error(number, monkeypatch, capsys):
    from t2t_flax.cli import explain

    def run(words):
        raise OSError(number, "what it says", "a.en/below")

    monkeypatch.setattr(explain, "run", run)
    assert main(["explain"]) == 2
    assert "what it says: 'a.en/below'. Give another path." in capsys.readouterr().err


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
@pytest.mark.parametrize("path", ["/proc/out.png", "/proc/no/such/folder/out.png", "lines/out.png"])
def test_output_where_nothing_can_be_created_is_a_user_error(command, path, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines").write_text("a\n")
    assert main([word.format(path) for word in command]) == 2
    err = capsys.readouterr().err
    assert f"={path} cannot be written: " in err and "Give another path." in err
    assert [each.name for each in tmp_path.iterdir()] == ["lines"]


def test_a_flag_that_is_given_twice_is_refused(capsys):
    assert main(["train", "--workdir=runs/a", "--workdir=runs/b"]) == 2
    assert "--workdir is given twice" in capsys.readouterr().err


def test_a_flag_without_a_value_turns_its_key_on(monkeypatch):
    load_extensions()
    monkeypatch.setitem(FLAGS, "--joint", Flag("some", "one vocabulary", key="data.joint_vocabulary"))
    parser = arguments.parser("some", "")
    arguments.add_flags(parser, "some")
    overrides = arguments.parse(parser, ["--joint"])[1]
    assert resolve(override(to_config_dict(Config()), overrides)).data.joint_vocabulary is True
    assert arguments.parse(parser, [])[1] == {}
