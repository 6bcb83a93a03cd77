"""The README's scores over seeds are those of the records."""

import json
import math
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[2]
T = 4.30265  # Student's t for three runs, 95 %


def test_multi30k_over_seeds():
    results = ROOT / "benchmarks" / "results"
    first = json.loads((results / "multi30k_wu2021.json").read_text())["scores"]["tokenized_bleu"]
    sweep = json.loads((results / "multi30k_seeds.json").read_text())
    third = json.loads((results / "multi30k_seed3.json").read_text())["sets"]
    (row,) = sweep["rows"]
    assert sweep["score"] == "tokenized_bleu" and sweep["signature"] == first["signature"] and row["seeds"] == [2]
    sets = {name: each["scores"]["tokenized_bleu"] for name, each in third.items()}
    assert {each["signature"] for each in sets.values()} == {first["signature"]}
    scores = [first["score"], *row["bleu"], sets["test2016"]["score"]]
    mean, spread = statistics.mean(scores), statistics.stdev(scores)
    text = (ROOT / "README.md").read_text()
    assert ", ".join(f"**{score:.2f}**" for score in scores) + " BLEU (seeds 1 to 3)" in text
    assert f"mean {mean:.2f} ± {T * spread / math.sqrt(3):.2f}" in text
    for name in ("test2017", "testcoco"):
        assert f"**{sets[name]['score']:.2f}**" in text and f"{third[name]['published']:.2f})" in text


def test_multi30k_english_french():
    sets = json.loads((ROOT / "benchmarks" / "results" / "multi30k_fr.json").read_text())["sets"]
    shown = [f"**{x['scores']['tokenized_bleu']['score']:.2f}** ({x['published']:.2f})" for x in sets.values()]
    assert list(sets) == ["test2016", "test2017", "testcoco"]
    assert ": " + ", ".join(shown) in (ROOT / "README.md").read_text()
