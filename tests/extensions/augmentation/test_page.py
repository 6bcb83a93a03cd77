"""docs/augmentation.md shows the records of subword regularisation."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"


def bleu(score: float, confidence: dict) -> str:
    return f"{score:.1f} ± {confidence['half_width']:.1f}"


def of_record(name: str) -> str:
    score = json.loads((RESULTS / name).read_text())["scores"]["sacrebleu"]
    return bleu(score["score"], score["confidence"])


def test_the_text_shows_what_a_draw_takes():
    section = " ".join((ROOT / "docs" / "augmentation.md").read_text().split())
    bpe, unigram, *_ = json.loads((RESULTS / "drawing.json").read_text())["microseconds_a_pair"].values()
    assert f"takes {bpe['later_pass']} µs of one core with BPE-dropout and {unigram['later_pass']} µs" in section
    assert f"takes {bpe['tokenized']} and {unigram['tokenized']} µs" in section


def test_the_table_shows_the_records():
    section = " ".join((ROOT / "docs" / "augmentation.md").read_text().split())
    cells = re.findall(r"\| (\d+\.\d ± \d\.\d) \| (\d+\.\d ± \d\.\d) \|", section)
    assert cells == [(of_record("toy_evaluation.json"), of_record("toy_bpe_dropout.json"))]
