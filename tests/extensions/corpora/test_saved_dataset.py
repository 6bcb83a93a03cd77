"""Datasets saved by Hugging Face's `datasets` are read as the package does, never in part."""

import json
import random
import tracemalloc

import pyarrow
import pytest
from helpers.corpora import open_en_de
from helpers.refusals import assert_names, refused

from t2t_flax.data.sources import open_source
from t2t_flax.errors import UserError

ROWS = [{"en": f"a house {i}\nhere", "de": f"ein Haus {i} 😀", "score": i} for i in range(25)]
PAIRS = [(f"a house {i} here", f"ein Haus {i} 😀") for i in range(25)]


def save(folder, rows, *, files=1, batch_rows=4):
    """Writes rows as `save_to_disk` does."""
    folder.mkdir(parents=True)
    table, names = pyarrow.Table.from_pylist(rows), []
    size = -(-len(rows) // files)
    for i in range(files):
        names.append({"filename": f"data-{i:05}-of-{files:05}.arrow"})
        part = table.slice(i * size, size)
        with pyarrow.ipc.new_stream(folder / names[-1]["filename"], table.schema) as stream:
            stream.write_table(part, max_chunksize=batch_rows)
    (folder / "state.json").write_text(json.dumps({"_data_files": names, "_fingerprint": "0"}))


@pytest.fixture
def dataset(tmp_path):
    save(tmp_path / "set" / "train", ROWS, files=3)
    save(tmp_path / "set" / "test", ROWS[:3])
    (tmp_path / "set" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    save(tmp_path / "single", [{"id": "1", "translation": {"de": "y", "en": "x", "fr": "z"}}])
    return tmp_path


@pytest.mark.smoke
def test_rows_are_read_in_order(dataset):
    source = open_en_de("hf:set:train", dataset)
    assert list(source.pairs()) == list(source.pairs()) == PAIRS and source.count == 25
    assert source.where(9) == f"{dataset / 'set' / 'train'} row 10"
    assert list(open_en_de(f"hf:{dataset}/set:test", "").pairs()) == PAIRS[:3]
    assert list(open_en_de("hf:single", dataset).pairs()) == [("x", "y")]
    backward = open_source(
        "hf:single", root=str(dataset), source_language="fr", target_language="en"
    )
    assert list(backward.pairs()) == [("z", "x")]
    assert source.fingerprint() != open_en_de("hf:set:test", dataset).fingerprint()


def test_datasets_itself_reads_the_same(tmp_path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(ROWS)
    chosen = datasets.DatasetDict(
        {"train": whole.shuffle(seed=0).select(range(20)), "none": whole.select([])}
    )
    chosen.save_to_disk(tmp_path / "set", num_shards={"train": 3, "none": 1})
    expected = [
        (row["en"].replace("\n", " "), row["de"])
        for row in datasets.load_from_disk(tmp_path / "set")["train"]
    ]
    assert list(open_en_de("hf:set:train", tmp_path).pairs()) == expected
    with refused("hf:set:none"):
        list(open_en_de("hf:set:none", tmp_path).pairs())
    languages = datasets.Features({"translation": datasets.Translation(["en", "de"])})
    nested = datasets.Dataset.from_list(
        [{"translation": {"en": "x", "de": "y"}}], features=languages
    )
    nested.save_to_disk(tmp_path / "nested")
    assert list(open_en_de("hf:nested", tmp_path).pairs()) == [("x", "y")]


def test_a_file_that_is_cut_off_anywhere_is_an_error(dataset):
    """Also between two record batches, where pyarrow sees nothing."""
    path = dataset / "set" / "train" / "data-00001-of-00003.arrow"
    data = path.read_bytes()
    for length in [*range(0, len(data), 40), len(data) - 8, len(data) - 1]:
        path.write_bytes(data[:length])
        with refused("data-00001-of-00003.arrow"):
            list(open_en_de("hf:set:train", dataset).pairs())
    generator = random.Random(0)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        try:
            assert len(list(open_en_de("hf:set:train", dataset).pairs())) == 25
        except UserError as error:
            assert_names(str(error), "data-00001-of-00003.arrow")


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("hf:none:train", ("config.data.train", "'hf:none:train'")),
        ("hf:set", ("hf:FOLDER:SPLIT", "train, test")),
        ("hf:set:dev", ("'dev'", "train, test")),
        ("hf:single:train", ("single", "dataset_dict.json")),
        ("hf:empty", ("empty", "state.json")),
        ("hf:selection", ("selection",)),
        ("hf:unnamed", ("unnamed/state.json",)),
        ("hf:broken", ("broken/state.json", "JSON")),
        ("hf:missing", ("missing/data.arrow",)),
        ("hf:columns", ("columns", "text", "de")),
        ("hf:number", ("data-00000-of-00001.arrow", "row 1:")),
    ],
)
def test_errors_say_what_is_wrong(dataset, spec, names):
    states = {
        "empty": None,
        "unnamed": "{}",
        "broken": "{",
        "missing": '{"_data_files": [{"filename": "data.arrow"}]}',
    }
    states["selection"] = json.dumps(
        {"_data_files": [], "_indices_data_files": [{"filename": "indices.arrow"}]}
    )
    for name, state in states.items():
        (dataset / name).mkdir()
        if state:
            (dataset / name / "state.json").write_text(state)
    save(dataset / "columns", [{"text": "x"}])
    save(dataset / "number", [{"en": "x", "de": 3}])
    with refused(*names):
        list(open_en_de(spec, dataset).pairs())


def test_memory_does_not_grow_with_the_rows(tmp_path):
    peaks = []
    for rows in (2_000, 20_000):
        save(
            tmp_path / str(rows),
            [{"en": "a house " * 20, "de": "ein Haus " * 20}] * rows,
            batch_rows=1000,
        )
        source = open_en_de(f"hf:{rows}", tmp_path)
        tracemalloc.start()
        assert sum(1 for _ in source.pairs()) == rows
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
