"""The README's scores over seeds are those of the records."""

import json
import math
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[2]
T = 4.30265  # Student's t for three runs, 95 %


def test_multi30k_over_seeds():
    results = ROOT / "benchmarks" / "results"
    seeds = json.loads((results / "multi30k_ende.json").read_text())["seeds"]
    text = (ROOT / "README.md").read_text()
    for name, shown in (("test2016", "test2016"), ("test2017", "test2017"), ("testcoco", "COCO")):
        of_set = [seed["sets"][name]["scores"]["tokenized_bleu"] for seed in seeds.values()]
        assert len({score["signature"] for score in of_set}) == 1
        scores = [score["score"] for score in of_set]
        mean, spread = statistics.mean(scores), statistics.stdev(scores)
        each = ", ".join(f"**{score:.2f}**" for score in scores)
        assert len(scores) == 3 and f"{shown} {each}, mean {mean:.2f} ± {T * spread / math.sqrt(3):.2f}" in text
    assert "; ".join(f"{x['published']:.2f}" for x in seeds["3"]["sets"].values()) in text
    first = json.loads((results / "multi30k_wu2021.json").read_text())["scores"]["tokenized_bleu"]["score"]
    second = json.loads((results / "multi30k_seeds.json").read_text())["rows"][0]["bleu"][0]
    assert f"have {first:.2f} and {second:.2f}." in text


def test_multi30k_english_french():
    sets = json.loads((ROOT / "benchmarks" / "results" / "multi30k_fr.json").read_text())["sets"]
    shown = [f"**{x['scores']['tokenized_bleu']['score']:.2f}** ({x['published']:.2f})" for x in sets.values()]
    assert list(sets) == ["test2016", "test2017", "testcoco"]
    assert ": " + ", ".join(shown) in (ROOT / "README.md").read_text()
