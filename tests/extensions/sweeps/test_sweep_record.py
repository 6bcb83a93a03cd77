"""`benchmarks.sweep_record`: the committed form of a finished sweep."""

import json

import numpy as np
import pytest

from benchmarks.sweep_record import main
from t2t_flax.extensions.sweeps.folder import COMPLETE


def test_record_has_each_seed_and_the_comparison(finished_sweep, tmp_path, capsys):
    folder, out = finished_sweep.folder, tmp_path / "record.json"
    main([f"--sweep={folder.path}", "--what=w", "--command=c", "--baseline=same", "--note=n", f"--out={out}"])
    record = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == record
    assert {key: record[key] for key in ("what", "command", "note", "baseline")} == {
        "what": "w", "command": "c", "note": "n", "baseline": "same",
    }  # fmt: skip
    assert [row["row"] for row in record["rows"]] == ["good", "same", "poor"]
    for row, wrong in zip(record["rows"], ([0, 1], [1, 11], [30, 31]), strict=True):
        assert row["bleu"] == [100.0 - count for count in wrong] and row["seeds"] == [0, 1]
        assert row["mean"] == pytest.approx(100 - np.mean(wrong)) and row["spread"] == pytest.approx(
            np.std(wrong, ddof=1)
        )
        assert row["seconds"] == [1.0, 1.0] and row["seconds_of"] == [{"step": 1.0}] * 2
        assert row["valid_nll_best"] == row["valid_nll_last"] == [1.5, 1.5]
    against = record["rows"][2]["against_base"]
    assert record["rows"][1]["against_base"] is None and against["difference"] == pytest.approx(-24.5, abs=0.1)
    assert (
        against["interval"]["low"] < -24.5 < 0 < against["interval"]["high"]
    )  # 10 BLEU between the baseline's two seeds


def test_unfinished_trials_are_named(finished_sweep, tmp_path):
    folder, out = finished_sweep.folder, tmp_path / "record.json"
    for name in finished_sweep.names:
        if name in ("same,seed=0", "same,seed=1", "good,seed=1"):
            (folder.workdir(name) / "complete.json").unlink()
    words = [f"--sweep={folder.path}", "--what=w", "--command=c", f"--out={out}"]
    main(words)
    record = json.loads(out.read_text())
    assert [(row["row"], row["bleu"]) for row in record["rows"]] == [
        ("good", [100.0]),
        ("same", []),
        ("poor", [70.0, 69.0]),
    ]
    states = {name: trial["state"] for name, trial in record["trials"].items()}
    assert (
        states["good,seed=0"] == COMPLETE != states["good,seed=1"] and record["trials"]["good,seed=1"]["attempts"] == 1
    )
    with pytest.raises(SystemExit, match="no trial has finished with the score chrf|has no score 'chrf'|chrf"):
        main([*words, "--score=chrf"])
