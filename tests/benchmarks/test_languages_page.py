"""The table of docs/languages.md shows the record of `benchmarks.many_languages`."""

import json
import re
from pathlib import Path

from benchmarks.many_languages import LIMITED, TRAINED, ZERO_SHOT

ROOT = Path(__file__).parents[2]


def test_the_table_shows_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "many_languages.json").read_text())
    page = (ROOT / "docs" / "languages.md").read_text()
    assert record["command"] in page
    section = page.partition("## Four languages")[2].partition("\n## ")[0]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"^\| .* \|$", section, re.M)][1:]
    results = record["results"]
    assert [result["temperature"] for result in results] == [5.0, 1.0]
    for result in results:
        assert [row["direction"] for row in result["rows"]] == [*TRAINED, *ZERO_SHOT]
    pairs = dict.fromkeys(ZERO_SHOT, "none (zero-shot)") | {"en-cs": f"{LIMITED:,}", "cs-en": f"{LIMITED:,}"}

    def scores(row: dict) -> list[str]:
        bleu = row["bleu"]
        return [f"{bleu['score']:.1f} ± {bleu['confidence']['half_width']:.1f}", f"{row['chrf']:.1f}"]

    assert table == [
        [first["direction"], pairs.get(first["direction"], "29,000"), *scores(first), *scores(second)]
        for first, second in zip(*(result["rows"] for result in results), strict=True)
    ]
