"""The benchmark of filters measures each of them."""

import json

import pytest

from benchmarks import filters


@pytest.mark.slow
def test_each_filter_and_table_is_measured(tmp_path, capsys):
    for name in ("train", "valid"):
        for side in ("en", "de"):
            (tmp_path / f"{name}.{side}").write_text("".join(f"A sentence {i}\n" for i in range(30)))
    pairs, held_out = (f"{tmp_path}/{name}.en,{tmp_path}/{name}.de" for name in ("train", "valid"))
    argv = [f"--pairs={pairs}", f"--held-out={held_out}", "--duplicates", "2000", f"--out={tmp_path / 'record.json'}"]
    filters.KEYS.pop("language")  # the extra langid
    filters.main(argv)
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["pairs"] == 30 and record["duplicates"][0]["dropped"] == 100
    assert record["filters"]["copy"]["dropped"] == record["filters"]["held_out"]["dropped"] == 30
    assert sorted(record["tables"]) == ["t.jsonl", "t.parquet", "t.tsv", "t.tsv.gz"]
