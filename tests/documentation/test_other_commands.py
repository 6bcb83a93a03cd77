"""Commands of the pages that need no run of the README, in the order of the pages."""

import re

import pytest
from helpers.documented_commands import PAGES, commands_of, follows_the_readme, run, run_programs, shortened

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OTHERS = [page for page in PAGES if not follows_the_readme(page)]

SHORT = (short for page in OTHERS for short in map(shortened, commands_of(page)) if short)
# Plans of any preset and number of rows have the same sizes once they are shortened.
COMMANDS = {re.sub(r" --(config|rows)=\S+", "", short) if " plan " in short else short: short for short in SHORT}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda text: re.sub(r"[^\w./=-]+", " ", text)[:70])
def test_command_runs(python, folder, command):
    run(python, folder, command)


def test_python_runs(python, folder):
    run_programs(python, folder, OTHERS)


def test_pages_contain_commands():
    """Guards the tests above against a change of format that hides all commands."""
    assert {"docs/data.md", "docs/languages.md"} <= set(OTHERS)
    assert all(commands_of(page) for page in ("docs/data.md", "docs/sweeps.md"))
