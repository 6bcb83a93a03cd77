"""Commands of the README, and of the pages that go on with its run, in one folder.

Commands of the other pages in another.
"""

import re

import pytest
from helpers.documented_commands import (
    PAGES,
    commands_of,
    follows_the_readme,
    run,
    run_programs,
    shortened,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FOLLOWING = [page for page in PAGES if follows_the_readme(page)]
OTHERS = [page for page in PAGES if page not in FOLLOWING]


def distinct(pages: list[str]) -> list[str]:
    """The commands of pages, in order, each once.

    Plans of any preset have the same sizes once they are shortened.
    """
    short = [each for page in pages for each in map(shortened, commands_of(page)) if each]
    return list({plain(each): each for each in short}.values())


def plain(command: str) -> str:
    return re.sub(r" --(config|rows)=\S+", "", command) if " plan " in command else command


def name_of(command: str) -> str:
    return re.sub(r"[^\w./=-]+", " ", command)[:70]


@pytest.mark.parametrize("command", distinct(FOLLOWING), ids=name_of)
def test_command_of_the_toy_run(folder, command):
    run(folder, command)


def test_programs_and_outputs_of_the_toy_run(folder):
    run_programs(folder, FOLLOWING)
    for name in ("a.npz", "a.png", "runs/toy-mean", "sweeps/dropout/report/report.html"):
        assert (folder / name).exists(), name


PLANS = {plain(each) for each in distinct(FOLLOWING) if " plan " in each}


@pytest.mark.parametrize(
    "command", [each for each in distinct(OTHERS) if plain(each) not in PLANS], ids=name_of
)
def test_command_of_another_page(other_folder, command):
    run(other_folder, command)


def test_programs_of_other_pages(other_folder):
    run_programs(other_folder, OTHERS)


def test_pages_contain_commands():
    """Guards the tests above against a change of format that hides all commands."""
    assert FOLLOWING[0] == "README.md" and "docs/languages.md" in OTHERS
    commands = [command for page in PAGES for command in commands_of(page)]
    names = {
        re.search(r"t2t_flax (\w+)", command)[1] for command in commands if "t2t_flax " in command
    }
    assert names >= set(
        "train evaluate translate prepare score attend average sweep explain plan".split()
    )
