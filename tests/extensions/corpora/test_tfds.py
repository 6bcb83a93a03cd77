"""Datasets of TFDS, prepared and read without TensorFlow."""

import dataclasses
import struct
import sys

import pytest
from helpers.corpora import open_en_de
from helpers.refusals import refused

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.data.sources import open_source
from t2t_flax.evaluation.restore import stored_config

BUILDER = """
import tensorflow_datasets as tfds

class Builder(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="de-en"), tfds.core.BuilderConfig(name="broken")]

    def _info(self):
        return self.dataset_info_from_configs(features=tfds.features.Translation(languages=("de", "en")))

    def _split_generators(self, download_manager):
        if self.builder_config.name == "broken":
            raise ConnectionError("statmt.org does not answer")
        return {"train": self._generate_examples(30), "test": self._generate_examples(4)}

    def _generate_examples(self, count):
        for i in range(count):
            yield i, {"de": f"Satz {i} ß", "en": f"sentence {i}\\r\\nof\\r{count}"}
"""


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    """Registers the dataset t2t_pairs and returns a data_dir for it."""
    folder = tmp_path_factory.mktemp("tfds")
    package = folder / "t2t_pairs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "t2t_pairs_dataset_builder.py").write_text(BUILDER)
    sys.path.insert(0, str(folder))
    import t2t_pairs.t2t_pairs_dataset_builder  # noqa: F401

    yield folder / "data"
    sys.path.remove(str(folder))


@pytest.mark.smoke
def test_tfds_is_prepared_and_read_without_tensorflow(tfds_dir):
    source = open_en_de("tfds:t2t_pairs/de-en:train", tfds_dir)
    pairs = list(source.pairs())
    assert sorted(pairs) == sorted((f"sentence {i}  of 30", f"Satz {i} ß") for i in range(30))
    assert source.count == 30 and list(source.pairs()) == pairs
    assert source.where(2) == "tfds:t2t_pairs/de-en:train pair 3"
    assert list(tfds_dir.rglob("*.array_record-*"))

    part = open_en_de("tfds:t2t_pairs/de-en:1.0.0:train[10:20]", tfds_dir)
    assert list(part.pairs()) == pairs[10:20] and part.count == 10
    both = open_en_de("tfds:t2t_pairs/de-en:train[:10%]+test", tfds_dir)
    assert list(both.pairs())[:3] == pairs[:3] and both.count == 3 + 4

    swapped = open_source(
        source.spec, root=str(tfds_dir), source_language="de", target_language="en"
    )
    assert list(swapped.pairs()) == [pair[::-1] for pair in pairs]
    assert len({s.fingerprint() for s in (source, part, both, swapped)}) == 4
    assert open_en_de(source.spec, tfds_dir).fingerprint() == source.fingerprint()
    assert "tensorflow" not in sys.modules


def test_tfds_folder_prepared_as_tfrecord_is_read(tfds_dir, tmp_path):
    """The default format if TensorFlow is installed.

    Converted here from the same dataset's ArrayRecord.
    """
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    expected = list(open_en_de("tfds:t2t_pairs/de-en:train", tfds_dir).pairs())
    folder = tmp_path / "t2t_pairs" / "de-en" / "1.0.0"
    folder.mkdir(parents=True)
    for file in (tfds_dir / "t2t_pairs" / "de-en" / "1.0.0").iterdir():
        if ".array_record" in file.name:
            records = [bytes(record) for record in ArrayRecordDataSource([str(file)])]
            framed = b"".join(
                struct.pack("<QI", len(r), 0) + r + struct.pack("<I", 0) for r in records
            )
            (folder / file.name.replace("array_record", "tfrecord")).write_bytes(framed)
        else:
            (folder / file.name).write_text(
                file.read_text().replace('"array_record"', '"tfrecord"')
            )
    assert list(open_en_de("tfds:t2t_pairs/de-en:train", tmp_path).pairs()) == expected
    assert list(open_en_de("tfds:t2t_pairs/de-en:train[7:12]", tmp_path).pairs()) == expected[7:12]

    shard = next(folder.glob("*train.tfrecord*"))
    shard.write_bytes(shard.read_bytes()[:-3])
    with refused("record 30"):
        list(open_en_de("tfds:t2t_pairs/de-en:train", tmp_path).pairs())


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("tfds:t2t_pairs/de-en:dev", ("'dev'", "(30 pairs)", "(4 pairs)")),
        ("tfds:t2t_pairs/de-en:train[:31]", ("'train[:31]'", "30 examples")),
        ("tfds:t2t_pairs/en-de:train", ("en-de", "de-en, broken")),
        ("tfds:no_such_data:train", ("'no_such_data'",)),
        ("tfds:no_such_data/de,en:train", ("no_such_data/de,en",)),
        ("tfds:no_such.data/de-en:train", ("no_such.data",)),
        ("tfds:wmt14_translate/en-de:train", ("wmt14_translate", "cs-en, de-en")),
        (
            "tfds:t2t_pairs/broken:train",
            ("t2t_pairs/broken", "ConnectionError: statmt.org", "data.root"),
        ),
        ("tfds:wmt14_translate", ("tfds:NAME:SPLIT",)),
        ("tfds:huggingface:x:train", ("tfds:huggingface:x:train",)),
        ("tfds:somebody:x/de-en:1.0.0:train", ("tfds:somebody:x/de-en:1.0.0:train",)),
    ],
)
def test_invalid_tfds_specs_are_rejected(tfds_dir, spec, names):
    with refused(*names):
        open_en_de(spec, tfds_dir)


def test_tfds_languages_must_be_features(tfds_dir):
    with refused("target_language", "'fr'", "de, en"):
        open_source(
            "tfds:t2t_pairs/de-en:test",
            root=str(tfds_dir),
            source_language="en",
            target_language="fr",
        )


def test_the_folder_of_a_stored_run_is_not_one_to_prepare_in(tmp_path):
    """data.root of a run is kept only if the dataset is prepared there.

    Runs are untrusted input.
    """
    config, planted = Config(), tmp_path / "planted"
    data = dataclasses.replace(
        config.data, root=str(planted), test="a=tfds:wmt14_translate/de-en:test; b=toy:test"
    )
    (tmp_path / "config.json").write_text(
        config_lib.to_json(dataclasses.replace(config, data=data))
    )
    assert stored_config(tmp_path).data.root == ""
    folder = planted / "wmt14_translate" / "de-en" / "1.0.0"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("{}")
    assert stored_config(tmp_path).data.root == str(planted)
