"""The comparison with other toolkits in docs/performance.md stays short, and each row has one source that cannot change."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "performance.md").read_text()
TEXT = PAGE[PAGE.index("## Features beside other toolkits") :]
ROWS = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if re.match(r"\| (?!\|)", line)]
FIXED = r"\[[^]]+\]\(https://github\.com/[^)]+/blob/[0-9a-f]{40}/[^)]+\)"


def test_each_row_has_one_source_of_a_fixed_commit():
    assert 12 <= len(ROWS) <= 25 and len(TEXT.splitlines()) <= 60
    for label, here, elsewhere, source in ROWS:
        assert here and elsewhere and re.fullmatch(FIXED, source), label


def test_the_source_is_of_a_toolkit_that_the_row_names():
    for label, _, elsewhere, source in ROWS:
        assert source[1 : source.index("]")] in elsewhere, label


def test_stops_are_those_of_the_log():
    log = Path(__file__).parents[1] / "benchmarks" / "results" / "kill_drill.log"
    stops, runs, equal, other = re.search(
        r"(\d+) stops in (\d+) runs: (\d+) equal .*?, (\d+) not", log.read_text()
    ).groups()
    assert f"[{runs} runs, stopped {stops} times](../benchmarks/results/kill_drill.log), all equal" in TEXT
    assert (equal, other) == (runs, "0")
