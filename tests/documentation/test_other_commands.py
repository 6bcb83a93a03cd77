"""Commands of the pages that need no run of the README, in the order of the pages."""

import re

import pytest
from helpers.documented_commands import PAGES, commands_of, follows_the_readme, run, run_programs, shortened

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OTHERS = [page for page in PAGES if not follows_the_readme(page)]


COMMANDS: dict[str, tuple[str, str]] = {}
"""Page and command. Commands that are the same once shortened run once; plans of any preset then have the same sizes."""
for page in OTHERS:
    for short in filter(None, map(shortened, commands_of(page))):
        COMMANDS.setdefault(re.sub(r" --config=\S+", "", short) if " plan " in short else short, (page, short))


@pytest.mark.parametrize("page, command", COMMANDS.values(), ids=lambda text: re.sub(r"[^\w./=-]+", " ", text)[:70])
def test_command_runs(folder, page, command):
    run(folder, command)


def test_python_runs(folder):
    run_programs(folder, OTHERS)


def test_pages_contain_commands():
    """Guards the tests above against a change of format that hides all commands."""
    assert {"docs/data.md", "docs/sweeps.md", "docs/languages.md"} <= set(OTHERS)
    assert all(commands_of(page) for page in ("docs/data.md", "docs/sweeps.md"))
