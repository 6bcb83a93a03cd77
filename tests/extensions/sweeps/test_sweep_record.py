"""`benchmarks.sweep_record`: the committed form of a finished sweep."""

import json

import numpy as np
import pytest

from benchmarks.sweep_record import main


def test_record_has_each_seed_and_the_comparison(finished_sweep, tmp_path, capsys):
    folder, out = finished_sweep.folder, tmp_path / "record.json"
    (folder.workdir("poor,seed=1") / "complete.json").unlink()
    words = [f"--sweep={folder.path}", "--what=w", "--command=c", "--baseline=same", "--note=n", f"--out={out}"]
    main(words)
    record = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == record
    assert [record[key] for key in ("what", "command", "note", "baseline")] == ["w", "c", "n", "same"]
    rows = {row["row"]: row for row in record["rows"]}
    for name, wrong in {"good": [0, 1], "same": [1, 11], "poor": [30]}.items():
        row = rows[name]
        assert row["bleu"] == [100.0 - count for count in wrong] and row["seeds"] == list(range(len(wrong)))
        assert row["mean"] == pytest.approx(100 - np.mean(wrong)) and row["valid_nll_best"] == [1.5] * len(wrong)
    against = rows["good"]["against_base"]
    assert rows["same"]["against_base"] is None and against["difference"] == pytest.approx(5.5, abs=0.5)
    assert record["trials"]["poor,seed=0"] == "complete" != record["trials"]["poor,seed=1"]
    with pytest.raises(SystemExit, match="chrf"):
        main([*words, "--score=chrf"])
