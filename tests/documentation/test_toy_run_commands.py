"""Commands of the README, and of the pages that go on with its run: they run in the order of the pages, in one folder."""

import re

import pytest
from helpers.documented_commands import (
    PAGES,
    commands_of,
    follows_the_readme,
    programs_of,
    run,
    run_programs,
    shortened,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FOLLOWING = [page for page in PAGES if follows_the_readme(page)]


# The plans are those of docs/planning.md, which need no run.
SHORT = (short for page in FOLLOWING for short in map(shortened, commands_of(page)))
COMMANDS = dict.fromkeys(short for short in SHORT if short and " plan " not in short)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda text: re.sub(r"[^\w./=-]+", " ", text)[:70])
def test_command_runs(python, folder, command):
    run(python, folder, command)


def test_python_runs(python, folder):
    run_programs(python, folder, FOLLOWING)


def test_outputs_exist(folder):
    for name in ("a.npz", "a.png", "runs/toy-mean", "sweeps/dropout/report/index.html"):
        assert (folder / name).exists(), name


def test_pages_contain_commands():
    """Guards the tests above against a change of format that hides all commands."""
    assert FOLLOWING[0] == "README.md"
    pages = [*commands_of("README.md"), *commands_of("docs/commands.md")]
    names = {re.search(r"t2t_flax (\w+)", command)[1] for command in pages if "t2t_flax " in command}
    assert names >= set("train evaluate translate prepare score attend average sweep explain plan".split())
    assert [command for command in commands_of("README.md") if command.startswith("pip install -r")] == [
        "pip install -r requirements.txt && python -m t2t_flax train --config=configs/toy.py --workdir=runs/toy",
        "pip install -r requirements.txt && python -m pytest",
    ]
    assert len(programs_of("docs/api.md")) == len(programs_of("docs/sweeps.md")) == 1
