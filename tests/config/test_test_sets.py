"""Several test sets in data.test, and specs that are a single source."""

import pytest
from helpers.refusals import refused

from t2t_flax.config import Data


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("", {}),
        ("a.en,a.de", {"test": "a.en,a.de"}),
        ("t16=a.en,a.de; t17=b.tsv ;", {"t16": "a.en,a.de", "t17": "b.tsv"}),
        (
            "wmt.2014-full_x=tfds:wmt14_translate/de-en:test",
            {"wmt.2014-full_x": "tfds:wmt14_translate/de-en:test"},
        ),
        ("a=x;b=y=z,y=w", {"a": "x", "b": "y=z,y=w"}),
        # A single source whose paths contain these characters.
        ("data/lang=en/a,data/lang=de/a", {"test": "data/lang=en/a,data/lang=de/a"}),
        ("./lang=en/a,lang=de/a", {"test": "./lang=en/a,lang=de/a"}),
        ("gs://b/l=en/a,gs://b/l=de/a", {"test": "gs://b/l=en/a,gs://b/l=de/a"}),
        ("odd;name.en,odd;name.de", {"test": "odd;name.en,odd;name.de"}),
        ("toy:test", {"test": "toy:test"}),
        (" ; ;", {"test": " ; ;"}),
    ],
)
def test_named_sets_keep_their_order(spec, expected):
    assert list(Data(test=spec).test_sets.items()) == list(expected.items())


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_no_set_has_the_name_of_another_validation_set(split):
    """evaluate --split=valid.a is the set "a" of data.valid, and its record has that name."""
    sets = {"valid": "a=v.en,v.de; b=w.en,w.de"}
    with refused(f"config.data.{split}", "'valid.a'"):
        data = Data(**sets | {split: "valid.a=t.en,t.de"})
        assert data.train_sources | data.valid_sets | data.test_sets
