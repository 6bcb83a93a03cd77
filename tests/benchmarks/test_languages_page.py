"""The table of docs/languages.md shows the record."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_shows_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "many_languages.json").read_text())
    page = (ROOT / "docs" / "languages.md").read_text()
    section = page.partition("## Four languages")[2].partition("\n## ")[0]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"^\| .* \|$", section, re.M)][1:]
    results = record["results"]
    assert [result["temperature"] for result in results] == [5.0, 1.0]
    pairs = {"de-fr": "none (zero-shot)", "fr-de": "none (zero-shot)", "en-cs": "5,000", "cs-en": "5,000"}

    def scores(row: dict) -> list[str]:
        bleu = row["bleu"]
        return [f"{bleu['score']:.1f} ± {bleu['confidence']['half_width']:.1f}", f"{row['chrf']:.1f}"]

    assert table == [
        [first["direction"], pairs.get(first["direction"], "29,000"), *scores(first), *scores(second)]
        for first, second in zip(*(result["rows"] for result in results), strict=True)
    ]
