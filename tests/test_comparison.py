"""Every cell of docs/comparison.md has a source, and the sources in this repository exist."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "comparison.md"
TEXT = PAGE.read_text()
TABLES, LIST = TEXT.split("## Sources")
LINKS = dict(re.findall(r"^\[([A-Z]\d+)\]: (\S+)$", LIST, re.M))
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in TABLES.split("## Where nothing was found")[0].splitlines()
    if line.startswith("|") and not line.startswith(("| |", "|--"))
]


def numbers(text: str) -> list[str]:
    return re.findall(r"\[([A-Z]\d+)\]", text)


def test_every_cell_has_sources_of_its_column():
    letters = [{numbers(row[column])[0][0] for row in ROWS if numbers(row[column])} for column in range(1, 12)]
    assert len(ROWS) > 60 and all(len(row) == 12 for row in ROWS)
    for label, *cells in ROWS:
        for cell, own in zip(cells, letters, strict=True):
            assert cell and numbers(cell), f"{label}: {cell!r} has no source"
            assert set(numbers(cell)) <= set(LINKS), f"{label}: {cell}"
            if cell.startswith("not found"):
                assert numbers(cell)[0][0] in own and all(n.endswith("0") and len(n) == 2 for n in numbers(cell)), cell
    assert all("X" in own if column == 0 else "X" not in own for column, own in enumerate(letters))


def test_features_are_answered_with_yes_no_or_partly():
    for label, *cells in ROWS[5:]:  # the first five are the status
        assert all(re.match(r"(yes|no|partly|not found)\b", cell) for cell in cells), label


def test_summary_follows_the_tables():
    less, more = re.findall(r"^- (?:Here \*\*no|\*\*yes\*\* here)([^:]*:.*?)(?=^- |^#)", TEXT, re.M | re.S)
    answers = {label: [cell.startswith("yes") for cell in cells] for label, *cells in ROWS[5:]}
    in_short = [
        {re.sub(r"\s+", " ", label) for label in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", text)} for text in (less, more)
    ]
    assert in_short[0] == {label for label, (ours, *_) in answers.items() if not ours}
    assert in_short[1] == {label for label, (ours, *others) in answers.items() if ours and not any(others)}


def test_words_of_a_search_that_found_nothing_are_listed():
    searched = re.findall(r"^\| ([^|]+) \| `.+` \|$", TABLES.split("## Where nothing was found")[1], re.M)
    assert set(searched) == {label for label, *cells in ROWS if any(cell.startswith("not found") for cell in cells)}


def test_sources_are_listed_once_and_used():
    listed = numbers(re.sub(r"^\[.*", "", LIST, flags=re.M))
    assert len(listed) == len(set(listed)) and set(listed) == set(LINKS)
    assert set(numbers(TABLES)) == set(LINKS)


@pytest.mark.parametrize("number", sorted(n for n in LINKS if n.startswith("X")))
def test_own_sources_exist(number):
    path, _, name = LINKS[number].partition("#")
    file = PAGE.parent / path
    assert file.exists(), f"[{number}]: {path}"
    assert not name or f"def {name}(" in file.read_text(), f"[{number}]: no test {name} in {path}"


def test_sources_elsewhere_are_of_a_fixed_commit_a_version_or_a_thread():
    fixed = r"https://(github\.com/.+(/(blob|tree)/[0-9a-f]{40}.*|/(issues|pull)/\d+|/releases)|pypi\.org/project/.+/[\d.]+)"
    for number, link in LINKS.items():
        assert number.startswith("X") or re.fullmatch(fixed, link), f"[{number}]: {link}"
