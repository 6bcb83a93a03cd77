"""The benchmark of the input: what a small run of it reports."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_small_run_reports_waits_and_cores(tmp_path):
    out = tmp_path / "record.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.input_rate",
        "--pairs=4000",
        "--corpora=multi30k",
        "--tokens=3000",
    ]
    done = subprocess.run(
        [*command, "--steps=2", "--seconds=0.5", f"--out={out}"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert row["updates"] >= 10
    assert 0 <= row["waited_ms"]["median"] <= row["waited_ms"]["p99"] <= row["waited_ms"]["worst"]
    assert row["layout_ms"] > 0 and row["filling_ms"] > 0 and row["cores_needed"] >= 2
    assert "| 3,000 (multi30k) | 2 |" in done.stdout
