"""Columns of tables, and limits of others: pairs beyond them are counted and listed."""

import bz2
import gzip
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from helpers.corpora import open_en_de
from helpers.refusals import refused

from t2t_flax.config import default_config, override, resolve
from t2t_flax.data.splits import check_sources
from t2t_flax.tasks import task_of

ROWS = [
    ("a house", "ein Haus", 0.9, 1),
    ("cats", "Hunde", 0.2, 1),
    ("a dog", "ein Hund", 0.7, 5),
    ("end", "Ende", 1, 0),
]
PAIRS = [row[:2] for row in ROWS]


@pytest.fixture
def folder(tmp_path):
    """The rows in each form."""
    lines = "".join(
        f"http://a.org:80/\t{score}\t{en}\t{de}\t{rank}\n" for en, de, score, rank in ROWS
    )
    (tmp_path / "p.tsv").write_text(lines)
    (tmp_path / "p.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "en-de.txt.bz2").write_bytes(bz2.compress(lines.encode()))
    objects = [
        {"src": en, "tgt": {"text": de}, "scores": [score, {"rank": rank}], "tgt.more": de}
        for en, de, score, rank in ROWS
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(one) + "\n" for one in objects))
    rows = [
        {"src": en, "tgt": {"text": de}, "score": score, "rank": rank}
        for en, de, score, rank in ROWS
    ]
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "p.parquet")
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    for saved in ("saved", "splits/train"):
        (tmp_path / saved).mkdir()
        with pyarrow.ipc.new_stream(tmp_path / saved / "data.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=3)
        (tmp_path / saved / "state.json").write_text(
            '{"_data_files": [{"filename": "data.arrow"}]}'
        )
    return tmp_path


TEXTS = {
    "p.tsv": "3,4", "p.tsv.gz": "3,4", "tsv:en-de.txt.bz2": "3,4", "p.jsonl": "src,tgt.text", "jsonl:p.jsonl": "src,tgt.more",
    "p.parquet": "src,tgt.text", "hf:saved": "src,tgt.text", "hf:splits:train": "src,tgt.text",
}  # fmt: skip
SCORES = {
    "tsv": ("2", "5"),
    "jsonl": ("scores.0", "scores.1.rank"),
    "parquet": ("score", "rank"),
    "hf": ("score", "rank"),
}


@pytest.mark.parametrize(("file", "texts"), TEXTS.items())
def test_pairs_beyond_a_limit_are_left_out_and_keep_their_place(folder, file, texts):
    score, rank = next(names for form, names in SCORES.items() if form in file)
    assert list(open_en_de(f"{file}:{texts}", folder).pairs()) == PAIRS
    source = open_en_de(f"{file}:{texts}:{score}>=0.7", folder)
    assert list(source.rows()) == [PAIRS[0], "score", *PAIRS[2:]] and list(source.pairs()) == [
        PAIRS[0],
        *PAIRS[2:],
    ]
    assert (
        source.count == 4
        and source.where(2).endswith(" 3")
        and [*source.references()][1] == ("ein Hund",)
    )
    both = open_en_de(f" {file} : {texts} : {score} >= 0.7 , {rank}<=1", folder)
    assert list(both.pairs()) == [PAIRS[0], PAIRS[3]]
    back = open_en_de(f"{file}:{','.join(texts.split(',')[::-1])}", folder)
    assert list(back.pairs()) == [pair[::-1] for pair in PAIRS]
    assert len({one.fingerprint() for one in (source, both, back)}) == 3


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("p.tsv", ("p.tsv", "line 1:", "4 TABs")),
        ("p.tsv:3,9", ("p.tsv", "line 1:", "3, 9", "5 columns")),
        ("p.tsv:3,4:1>=0.5", ("p.tsv", "line 1:", "column 1", "'http")),
        ("p.tsv:3", ("'3'", "FILE:SOURCE,TARGET")),
        ("p.tsv:0,4", ("'0'",)),
        ("p.tsv:en,de", ("'en'",)),
        ("p.tsv:3,4:", ("''", "COLUMN>=NUMBER")),
        ("p.tsv:3,4:5>=nan", ("'5>=nan'",)),
        ("p.tsv:3,4:2>=7", ("p.tsv", "4 with", "score")),
        ("p.jsonl:src,none", ("p.jsonl", "line 1:", '"src"', '"none"')),
        ("p.jsonl:src,tgt.text:scores>=1", ("p.jsonl", "line 1:", "column scores,", "[0.9")),
        ("p.jsonl:src,tgt.text:scores.7>=1", ("line 1:", "column scores.7,", "None")),
        ("p.parquet:src,none", ("p.parquet", "column none", "score, rank")),
        ("p.parquet:src,tgt.text:tgt.score>=1", ("p.parquet", "column tgt.score")),
        ("p.parquet:src,tgt.text:src>=1", ("p.parquet", "row 1:", "column src,", "'a house'")),
        ("p.parquet:src,rank", ("p.parquet", "row 1:")),
        ("hf:saved:src,none", ("data.arrow", "column none")),
        ("hf:splits:src,tgt.text", ("hf:FOLDER:SPLIT", "train")),
        ("hf:saved:src,tgt.text:score>=7", ("hf:saved", "4 with", "score")),
    ],
)
def test_wrong_columns_are_named_with_their_place(folder, spec, names):
    with refused(*names):
        list(open_en_de(spec, folder).pairs())


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_a_limit_is_rounded_as_the_numbers_of_its_column_are(tmp_path, bits):
    scores = pyarrow.array(np.array([0.5, 0.7, 0.7, 0.9], f"float{bits}"))
    nested = pyarrow.StructArray.from_arrays([scores], ["of"])
    texts = pyarrow.array([*"abcd"])
    columns = {"x": texts, "y": texts, "score": scores, "nested": nested}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "p.parquet")
    for column in ("score", "nested.of"):
        for sign, kept in ((">=", "bcd"), ("<=", "abc")):
            source = open_en_de(f"p.parquet:x,y:{column}{sign}0.7", tmp_path)
            assert [text for text, _ in source.pairs()] == [*kept]
        assert len([*open_en_de(f"p.parquet:x,y:{column}<=1e300", tmp_path).pairs()]) == 4


def test_a_number_that_no_float_holds_and_one_of_a_later_column_are_refused(tmp_path):
    (tmp_path / "p.jsonl").write_text(f'{{"x": "a", "y": "b", "z": {"9" * 400}}}\n')
    with refused("p.jsonl", "line 1:", "column z,", f" {'9' * 60}..."):
        list(open_en_de("p.jsonl:x,y:z>=1", tmp_path).rows())
    (tmp_path / "p.tsv").write_text("a\tb\t0.1\tn/a\n")
    with refused("p.tsv", "line 1:", "column 4,", "'n/a'"):
        list(open_en_de("p.tsv:1,2:3>=0.5,4>=0.5", tmp_path).rows())


def test_validation_and_test_sets_take_columns_and_no_limits(folder):
    keys = {"data.train": "p.tsv:3,4", "data.valid": "p.tsv.gz:3,4", "data.root": str(folder)}
    check_sources(task_of(resolve(override(default_config(), keys))), ["train", "valid"])
    keys["data.valid"] += ":2>=0.5"
    with refused("config.data.valid", "2>=0.5"):
        check_sources(task_of(resolve(override(default_config(), keys))), ["valid"])
