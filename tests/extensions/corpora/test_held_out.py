"""Training pairs that occur in validation or test sets are dropped, counted and listed."""

import pickle

import pytest

from t2t_flax.config import default_config, override, resolve
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.hooks import training_policies
from t2t_flax.data.preprocess import Pair
from t2t_flax.extensions.corpora.held_out import _key
from t2t_flax.extensions.corpora.list_dropped import dropped_by
from t2t_flax.tasks import task_of

TRAIN = [
    ("A house.", "Ein Haus."),
    ("a  HOUSE", "Ein Gebäude."),  # its source is that of a test sentence
    ("One building", "ein haus"),  # its target
    ("The dog runs", "Der Hund läuft"),  # of the validation set
    ("...", "!!!"),
    ("❤️", "❤️ 👍️"),
    ("Ein Haus", "A house"),  # reversed: other languages
    ("cats", "Katzen"),
]


@pytest.fixture
def config_of(tmp_path):
    def write(name, pairs):
        for side, texts in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{text}\n" for text in texts))

    write("train", TRAIN)
    write("valid", [("The dog runs!", "Der Hund läuft.")])
    write("test", [("A house", "Ein Haus"), ("☀️", "!")])
    (tmp_path / "test.ref2.de").write_text("ein Gebäude\n\u0301\n")

    def of(side, **keys):
        keys = {"data." + name: value for name, value in keys.items()}
        values = {
            "data.train": "train.en,train.de",
            "data.valid": "valid.en,valid.de",
            "data.root": str(tmp_path),
        }
        values |= {
            "data.test": "test.en,test.de,test.ref2.de",
            "data.vocab_size": "290",
            "filters.held_out": side,
        }
        values |= {"data.max_length": "64", "data.batch_tokens": "256", "data.pack_length": "64"}
        return resolve(override(default_config(), values | keys))

    return of


def kept(config):
    (rule,) = training_policies(config).filters
    rule = pickle.loads(pickle.dumps(rule))
    pairs = [Pair(source, target, [5], [6], 0) for source, target in TRAIN]
    return [i for i, drop in enumerate(rule.drops(pairs)) if not drop]


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        ("source", [2, 4, 5, 6, 7]),
        ("target", [4, 5, 6, 7]),
        ("either", [4, 5, 6, 7]),
        ("pair", [2, 4, 5, 6, 7]),
    ],
)
def test_texts_are_compared_without_case_punctuation_and_spaces(config_of, side, expected):
    assert kept(config_of(side)) == expected


def test_variants_of_a_sign_are_compared_as_the_sign():
    assert _key("葛\U000e0100 1\ufe0f", "ja") == _key("葛1", "ja") and not _key(
        "☀\ufe0f \u0301", "ja"
    )


def test_pairs_of_the_other_direction_are_found(config_of):
    keys = {"train": "back=train.de,train.en; there=train.en,train.de"}
    directions = "back=de-en, there=en-de, valid=en-de, test=en-de"
    config = config_of("pair", **keys).with_values({"languages.directions": directions})
    (rule,) = training_policies(config).filters
    pairs = [Pair(target, source, [5], [6], 0) for source, target in TRAIN]
    assert [i for i, drop in enumerate(rule.drops(pairs)) if not drop] == [2, 4, 5, 6, 7]


def test_dropped_pairs_are_counted_and_listed_and_other_sets_are_another_store(config_of, tmp_path):
    corpus = prepare_corpus(task_of(config_of("either")), tmp_path / "run")
    assert corpus.train.meta["held_out"] == corpus.train.meta["dropped"] == 4
    listed = list(dropped_by(config_of("either"), corpus.tokenizers))
    assert [reason for _, reason in listed] == ["held_out"] * 4 and listed[0][0].endswith(
        "train.de line 1"
    )
    other = prepare_corpus(task_of(config_of("either", test="")), tmp_path / "other")
    assert other.train.num_pairs == 7 and other.train.digest != corpus.train.digest


def test_the_directions_of_the_training_pairs_are_part_of_the_recipe(config_of):
    """The same files and sets with swapped directions drop other pairs."""
    keys = {"train": "one=train.en,train.de; two=train.en,train.de"}
    stored = []
    for one, two in (("en-de", "de-en"), ("de-en", "en-de")):
        directions = f"one={one}, two={two}, valid=en-de, test=en-de"
        (rule,) = training_policies(
            config_of("either", **keys).with_values({"languages.directions": directions})
        ).filters
        stored.append(rule.as_stored())
    assert stored[0]["held_out_texts"] == stored[1]["held_out_texts"] and stored[0] != stored[1]
