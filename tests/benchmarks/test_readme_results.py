"""The README's scores over seeds are those of the records."""

import json
import math
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[2]
T = 12.7062  # Student's t for two runs, 95 %


def test_multi30k_over_seeds():
    results = ROOT / "benchmarks" / "results"
    first = json.loads((results / "multi30k_wu2021.json").read_text())["scores"]["tokenized_bleu"]
    sweep = json.loads((results / "multi30k_seeds.json").read_text())
    (row,) = sweep["rows"]
    assert sweep["score"] == "tokenized_bleu" and sweep["signature"] == first["signature"] and row["seeds"] == [2]
    scores = [first["score"], *row["bleu"]]
    mean, spread = statistics.mean(scores), statistics.stdev(scores)
    text = (ROOT / "README.md").read_text()
    assert f"**{scores[0]:.2f}**, **{scores[1]:.2f}** BLEU (seeds 1, 2)" in text
    assert f"mean {mean:.2f} ± {T * spread / math.sqrt(2):.2f}" in text
