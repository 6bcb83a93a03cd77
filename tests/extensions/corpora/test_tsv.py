"""Tab-separated files as sources."""

import gzip

import pytest

from t2t_flax.data.sources import open_source
from t2t_flax.errors import UserError


def open_en_de(folder, name):
    return open_source(name, root=str(folder), source_language="en", target_language="de")


@pytest.mark.parametrize("name", ["t.tsv", "t.tsv.gz"])
def test_pairs_are_read_in_order_repeatedly(tmp_path, name):
    text = b"a house\tein Haus\n\tleer\nend\tEnde\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    source = open_en_de(tmp_path, name)
    assert list(source.pairs()) == list(source.pairs()) == [("a house", "ein Haus"), ("", "leer"), ("end", "Ende")]
    assert source.count == 3 and source.where(2) == f"{tmp_path / name} line 3"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x\ty\nno tab\n", r"t\.tsv line 2: expected source TAB target, found 0 TABs"),
        (b"x\ty\tz\n", r"t\.tsv line 1: .* found 2 TABs"),
        (b"x\t\xff\n", r"t\.tsv line 1: byte 0xff at offset 2"),
        (b"", r"the corpus is empty"),
    ],
)
def test_errors_name_file_and_line(tmp_path, content, message):
    (tmp_path / "t.tsv").write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(open_en_de(tmp_path, "t.tsv").pairs())
