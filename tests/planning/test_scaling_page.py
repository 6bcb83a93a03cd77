"""docs/scaling.md is what its script writes from the committed record, and its points are what it says they are."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date(tmp_path):
    page = tmp_path / "scaling.md"
    subprocess.run([sys.executable, "-m", "benchmarks.scaling", f"--page={page}"], check=True, cwd=ROOT)
    assert page.read_text() == (ROOT / "docs" / "scaling.md").read_text(), "run python -m benchmarks.scaling"


def test_at_most_eight_points_were_compiled_and_each_by_the_compiler():
    record = json.loads((ROOT / "benchmarks" / "results" / "scaling.json").read_text())
    assert 1 <= len(record) <= 8
    assert all("fits" in told["train"] and told["compiler"].startswith("libtpu") for told in record.values())
