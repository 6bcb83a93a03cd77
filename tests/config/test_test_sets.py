"""Several test sets in data.test: their names in records, and specs that are a single source."""

import pytest

from t2t_flax.config import Data, resolve
from t2t_flax.errors import UserError


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("", {}),
        ("a.en,a.de", {"test": "a.en,a.de"}),
        ("t16=a.en,a.de; t17=b.tsv ;", {"t16": "a.en,a.de", "t17": "b.tsv"}),
        ("wmt.2014-full_x=tfds:wmt14_translate/de-en:test", {"wmt.2014-full_x": "tfds:wmt14_translate/de-en:test"}),
        ("a=x;b=y=z,y=w", {"a": "x", "b": "y=z,y=w"}),
        # A single source whose paths contain these characters.
        ("data/lang=en/a,data/lang=de/a", {"test": "data/lang=en/a,data/lang=de/a"}),
        ("./lang=en/a,lang=de/a", {"test": "./lang=en/a,lang=de/a"}),
        ("gs://b/l=en/a,gs://b/l=de/a", {"test": "gs://b/l=en/a,gs://b/l=de/a"}),
        ("odd;name.en,odd;name.de", {"test": "odd;name.en,odd;name.de"}),
        ("toy:test", {"test": "toy:test"}),
    ],
)
def test_named_sets_keep_their_order(spec, expected):
    assert list(Data(test=spec).test_sets.items()) == list(expected.items())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("a=x; b.en,b.de", "'b.en,b.de' has no name"),
        ("a.en,a.de; b=b.en,b.de", "the first test set has no name"),
        ("a=x; A=y", "two test sets are named 'A'"),
        ("test=x", "'test' is the name of a split"),
        ("Valid=x", "'Valid' is the name of a split"),
        ("a=", "'a' names no source"),
        ("..=x; b=y", r"'\.\.' cannot name a test set"),
        ("a\0b=x", "control character|cannot name a test set"),
        (f"{'n' * 65}=x", "cannot name a test set"),
    ],
)
def test_wrong_test_sets_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        resolve({"data": {"test": spec}})
