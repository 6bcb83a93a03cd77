"""docs/performance.md is generated from the committed records, and says what was not measured."""

import json
from xml.etree import ElementTree

import pytest

from benchmarks.performance_page import PAGE, chart, charts, fill, table_of

MACHINE = {"device": "cpu", "cpu": "some CPU, AVX2", "cores": 2}
SPREAD = {"median": 200.0, "min": 190.0, "max": 220.0, "all": [190.0, 200.0, 220.0]}
RATIO = {"median": 2.0, "min": 1.5, "max": 2.5, "all": [1.5, 2.0, 2.5]}
COMMON = {"what": "step, tiny: in turn", "command": "python -m benchmarks.x", "threads": 2, "versions": {"python": "3.11"}, "machine": MACHINE,
          "skipped": {"joeynmt": "no network"}}  # fmt: skip
TRAINED = {"tokens_per_second": SPREAD, "milliseconds_a_step": 41.0, "gflops": 50.0, "fraction_of_peak": 0.25,
           "peak_rss_mb": 2048, "first_pass_seconds": 3.2, "settings": [], "versions": {"torch": "2"}}  # fmt: skip
DECODED = {"sentences_per_second": SPREAD, "tokens_per_second": 3000, "first_pass_seconds": 1.0, "peak_rss_mb": 512,
           "settings": [], "versions": {}}  # fmt: skip
RECORDS = {
    "training_tiny": COMMON
    | {
        "engines": {"ours": TRAINED, "torch": TRAINED},
        "ratio_of": "ours",
        "ratio": {"torch": RATIO},
        "peak": {"float32_gflops": {"jax": {"1x2x3": 200.0}, "torch": {"skipped": "no network"}}, "best_gflops": 200.0},
        "batches": {"gflop_per_target_token": 0.0157},
    },
    "decoding_tiny": COMMON
    | {
        "engines": {
            "ours": DECODED,
            "ctranslate2_float32": DECODED | {"tried": {"1x2": 150.0, "2x1": 200.0}, "arrangement": "2x1"},
        },
        "ratio": {"ctranslate2_float32": RATIO},
        "agreement": {"ctranslate2_float32": {"sentences": 512, "equal": 510, "near_ties": 2, "different": 0}},
        "search": {"sentences": 512, "source_tokens": 7424, "beam_size": 4, "batch_size": 32},
        "model": {"weights": "random"},
    },
    "growth": COMMON
    | {
        "base": {"layers": 2},
        "training": [
            {"what": "length", "values": [32, 64], "milliseconds": [1.0, 2.5], "slope": 1.32, "slope_of_flops": 1.1,
             "last_slope": 1.32, "last_slope_of_flops": 1.1}
        ],
        "decoding": [],
    },
    "profile": COMMON
    | {
        "parts": {
            "training_tiny": {"what": "a batch", "shares": {"matrix products": 0.7, "optimizer": 0.3}, "load": [1.0, 2.0],
                              "products": {"logits": {"share": 0.5, "gflops": 80.0, "shapes": ["1x2x3x4", "5x6x7x8"]}},
                              "gflops_of_products": 75.0, "peak_gflops": 100.0},
            "decoding_tiny": {"what": "sentences", "shares": {"matrix products": 0.4, "top-k": 0.6}, "load": [3.0, 4.0],
                              "products": {}, "gflops_of_products": 40.0, "peak_gflops": 101.0},
        }
    },
    "start": COMMON | {key: {"cold": SPREAD, "warm": SPREAD} for key in ("first_update", "first_line", "mixed_lines")},
}  # fmt: skip


def test_performance_page_is_up_to_date():
    assert fill(PAGE.read_text()) == PAGE.read_text(), "run python -m benchmarks --page"
    for name, svg in charts().items():
        assert (PAGE.parent / name).read_text() == svg, "run python -m benchmarks --page"


@pytest.mark.parametrize("name, expected", [
    ("training_tiny", ["| PyTorch `nn.Transformer` | 200 (190 to 220) | **2.00** (1.50 to 2.50) | 41 | 50 (25 %) | 2.0 | 3 |",
                       "jax 200; torch not measured", "15.7 MFLOP", "Not measured: Joey NMT (no network)."]),
    ("decoding_tiny", ["| 2x1 (1x2 150) | 510 of 512, 2 near ties | 0.5 |", "512 sentences of 14.5 tokens", "random weights"]),
    ("growth", ["| training: length | 32, 64 | 1, 2.5 | 1.32 (1.32) | 1.10 (1.10) |"]),
    ("profile", ["| matrix products | 70.0 % | 40.0 % |", "| top-k | 0.0 % | 60.0 % |", "| logits | 50.0 %, 80 (1x2x3x4) |  |",
                 "**75** | **40** |", "training, tiny: a batch; decoding, tiny: sentences.", "1 to 2, 3 to 4."]),
    ("start", ["| `train` to its first update | 200.0 (190.0 to 220.0) |"]),
])  # fmt: skip
def test_tables_show_the_record(name, expected):
    table = table_of(name)(RECORDS[name])
    picture = chart(RECORDS[name])
    if "engines" in RECORDS[name]:
        assert ElementTree.fromstring(picture).tag.endswith("svg") and ">this project</text>" in picture
    else:
        assert not picture
    assert "some CPU, AVX2, 2 cores" in table and "`python -m benchmarks.x`" in table
    for text in expected:
        assert text in table


def test_written_text_stays_and_missing_records_are_named(tmp_path):
    (tmp_path / "start.json").write_text(json.dumps(RECORDS["start"]))
    page = (
        "Before.\n\n<!-- start -->\nold\n<!-- /start -->\n\nBetween.\n\n<!-- growth -->\n<!-- /growth -->\n\nAfter.\n"
    )
    filled = fill(page, tmp_path)
    assert filled.startswith("Before.\n") and "\n\nBetween.\n\n" in filled and filled.endswith("\n\nAfter.\n")
    assert "old" not in filled and "`translate` to its first line" in filled
    assert "Not measured yet: `benchmarks/results/growth.json` does not exist." in filled
    assert fill(filled, tmp_path) == filled
