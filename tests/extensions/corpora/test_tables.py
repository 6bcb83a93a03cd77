"""Tab-separated, JSON-lines and Parquet files as sources."""

import gzip
import re
import runpy
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from helpers.corpora import open_en_de
from helpers.refusals import refused

from t2t_flax.data.sources import open_source

ROOT = Path(__file__).parents[3]
PAIRS = [("a house", "ein Haus"), ("", "leer"), ("end", "Ende")]


@pytest.mark.parametrize("name", ["t.tsv", "t.tsv.gz"])
def test_tab_separated_pairs_are_read_in_order_repeatedly(tmp_path, name):
    text = b"a house\tein Haus\n\tleer\nend\tEnde\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    source = open_en_de(name, tmp_path)
    assert list(source.pairs()) == list(source.pairs()) == PAIRS
    assert source.count == 3 and source.where(2) == f"{tmp_path / name} line 3"


JSON_LINES = [
    '{"en": "a house", "de": "ein Haus", "id": 7}',
    '{"translation": {"de": "Straße\\u2028 😀", "en": "two\\nlines"}}',
    '{"en": null, "de": "Der\\u000bHund\\u001c"}',
]


def test_json_lines_are_read_in_both_languages(tmp_path):
    for name in ("t.jsonl", "t.jsonl.gz", "other"):
        (tmp_path / name).write_bytes("".join(f"{line}\n" for line in JSON_LINES).encode())
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress((tmp_path / "t.jsonl").read_bytes()))
    for spec in ("t.jsonl", "t.jsonl.gz", "jsonl:other"):
        source = open_en_de(spec, tmp_path)
        assert list(source.pairs()) == [
            ("a house", "ein Haus"), ("two lines", "Straße\u2028 😀"), ("", "Der\x0bHund\x1c")
        ]  # fmt: skip
        assert source.count == 3 and source.where(1).endswith(" line 2")
        backward = open_source(spec, root=str(tmp_path), source_language="de", target_language="en")
        assert list(backward.pairs()) == [pair[::-1] for pair in source.pairs()]
        assert backward.fingerprint() != source.fingerprint()


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("t.tsv", b"x\ty\nno tab\n", ("line 2:", "0 TABs")),
        ("t.tsv", b"x\ty\tz\n", ("line 1:", "2 TABs")),
        ("t.tsv", b"x\t\xff\n", ("line 1:", "offset 2")),
        ("t.tsv", b"", ()),
        ("t.jsonl", b"", ()),
        ("t.jsonl", b"\n", ("line 1", "JSON")),
        ("t.jsonl", b'{"en": "x"}\n', ("line 1:", '"en"', '"de"', "config.data.source_language")),
        ("t.jsonl", b'{"en": "x", "de": 3}\n', ("line 1:",)),
        ("t.jsonl", b'["x", "y"]\n', ("line 1:",)),
        ("t.jsonl", b'{"translation": null}\n', ("line 1:", '"en"')),
        (
            "t.jsonl",
            b'{"en": "a \\ud83d\\ude00", "de": "b"}\n{"en": "a \\ud83d b", "de": "c"}\n',
            ("line 2", "\\ud83d"),
        ),
        ("t.jsonl", b'{"translation": "x"}\n', ("line 1:",)),
        ("t.parquet", b"plain text", ("Parquet",)),
    ],
)
def test_malformed_files_are_reported_with_their_line(tmp_path, name, content, names):
    (tmp_path / name).write_bytes(content)
    with refused(name, *names):
        list(open_en_de(name, tmp_path).pairs())


MEMORY = """<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4"><header srclang="en"/><body>
 <tu><tuv xml:lang="en-GB"><seg>It is <bpt i="1">&lt;b&gt;</bpt>late<ept i="1"/>.</seg></tuv>
  <tuv xml:lang="de-DE"><seg>Es ist <hi>spät</hi>.</seg></tuv></tu>
 <tu><tuv lang="de"><seg>Wo ist
der Hund?</seg></tuv><tuv lang="EN"><seg>Where is the dog?</seg></tuv></tu>
 <tu><tuv xml:lang="en"><seg>Yes &amp; no.</seg></tuv></tu>
</body></tmx>"""


def test_a_translation_memory_is_refused_with_the_script_that_converts_it(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "m.tmx").write_text(MEMORY)
    with refused("m.tmx", "docs/data.md"):
        open_en_de("m.tmx", tmp_path)
    (script,) = re.findall(
        r"with this as `tmx.py`:\n\n```python\n(.*?)```",
        (ROOT / "docs" / "data.md").read_text(),
        re.S,
    )
    (tmp_path / "tmx.py").write_text(script)
    monkeypatch.setattr("sys.argv", ["tmx.py", str(tmp_path / "m.tmx"), "en", "de"])
    runpy.run_path(str(tmp_path / "tmx.py"))
    (tmp_path / "m.jsonl").write_text(capsys.readouterr().out)
    expected = [
        ("It is late.", "Es ist spät."),
        ("Where is the dog?", "Wo ist der Hund?"),
        ("Yes & no.", ""),
    ]
    assert list(open_en_de("m.jsonl", tmp_path).pairs()) == expected


@pytest.fixture
def tables(tmp_path):
    """Two files with columns of their own, and one with the columns below "translation"."""
    rows = [{"en": en, "de": de, "score": 0.5} for en, de in PAIRS]
    for name, part in (
        ("p-0", rows[:1]),
        ("p-1", rows[1:]),
        ("nested", [{"translation": row} for row in rows]),
    ):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), tmp_path / f"{name}.parquet")
    return tmp_path


def test_parquet_files_are_read_in_order_of_their_names(tables):
    expected = PAIRS
    for spec in ("parquet:p-*.parquet", "nested.parquet"):
        source = open_en_de(spec, tables)
        assert source.count == 3 and list(source.pairs()) == list(source.pairs()) == expected
    source = open_en_de("parquet:p-?.parquet", tables)
    assert source.where(0).endswith("p-0.parquet row 1") and source.where(2).endswith(
        "p-1.parquet row 2"
    )
    backward = open_source(
        "p-1.parquet", root=str(tables), source_language="de", target_language="en"
    )
    assert list(backward.pairs()) == [pair[::-1] for pair in expected[1:]]


def test_parquet_without_the_languages_is_refused(tables):
    with refused("p-0.parquet", "de, score", "fr", "config.data.source_language"):
        open_source("p-0.parquet", root=str(tables), source_language="en", target_language="fr")
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"translation": "x"}]), tables / "t.parquet"
    )
    with refused("t.parquet", "translation", "de"):
        open_en_de("t.parquet", tables)
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"en": "x", "de": 3}]), tables / "n.parquet"
    )
    with refused("n.parquet", "row 1:"):
        list(open_en_de("n.parquet", tables).pairs())


@pytest.mark.parametrize(
    "rows", [[{"en": "x", "de": None}], [{"translation": {"en": "x", "de": None}}]]
)
def test_null_is_an_empty_side(rows, tables):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tables / "n.parquet")
    assert list(open_en_de("n.parquet", tables).pairs()) == [("x", "")]


def test_damaged_parquet_pages_are_reported_with_the_file(tables):
    rows = [{"en": f"sentence {i}", "de": f"Satz {i}"} for i in range(5000)]
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(rows), tables / "d.parquet", use_dictionary=False
    )
    data = bytearray((tables / "d.parquet").read_bytes())
    data[200:2000] = bytes(1800)
    (tables / "d.parquet").write_bytes(data)
    with refused("d.parquet", "row 0"):
        list(open_en_de("d.parquet", tables).pairs())
    with refused(f"{tables}/b-*"):
        list(open_en_de("parquet:b-*", tables).pairs())
