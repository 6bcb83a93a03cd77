"""The table of docs/finetuning.md shows the record."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_table_shows_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "fine_tuning.json").read_text())
    page = (ROOT / "docs" / "finetuning.md").read_text()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"^\| .* \|$", page, re.M)][1:]
    expected = [
        [
            row["way"],
            f"{row['trained_parameters']:,}" if row["keys"] else "",
            f"{row['optimizer_state_mib']:.2f} MiB" if row["keys"] else "",
            *(f"{row[text][name]}" for text in ("shifted", "usual") for name in ("exact_percent", "nats_per_sentence")),
        ]
        for row in record["rows"]
    ]
    assert table == expected
