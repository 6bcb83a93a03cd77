"""Pairs drawn anew in each pass: functions of (seed, pass, pair), whatever else is drawn with them."""

import dataclasses
import math
import pickle

import numpy as np
import pytest
from helpers.configs import small_config
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.config import Data
from t2t_flax.data.batching.streams import Visits
from t2t_flax.data.preprocess import Policies, prepare_split
from t2t_flax.data.sources import JoinedSource, Source
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.extensions.augmentation.drawn_pairs import DrawnPairs
from t2t_flax.extensions.shared.tagged_source import TaggedSource

POLICIES = Policies(max_length=60, on_too_long="truncate", empty_lines="drop", keep_texts=True)
CONFIG = small_config(data=dict(max_length=60, pack_length=60, batch_tokens=300)).data


class Houses(Source):
    def read(self):
        return ((f"the small house {i} stands there", f"das kleine Haus {i} steht dort") for i in range(self.count))

    def fingerprint(self):
        return f"houses {self.count}"


@dataclasses.dataclass(frozen=True)
class Appended:
    """Appends a word to both sides."""

    word: str
    probability: float = 0.3

    @property
    def key(self):
        return self.word

    def __call__(self, source, target, random):
        return f"{source} {self.word}", f"{target} {self.word}"


@dataclasses.dataclass(frozen=True)
class Spelled:
    """Spells each word by its characters with probability 1/2."""

    key = "spelled"

    def encoder(self, tokenizer):
        def encode(text, random):
            ids = []
            for word in text.split():
                for part in word if random.random() < 0.5 else [word]:
                    ids += tokenizer.encode_text(part)
            return ids

        return encode


@pytest.fixture(scope="module")
def tokenizers():
    return train_tokenizers(Houses("h", 60), Data(vocab_size=350), ["<t>"])


@pytest.fixture(scope="module")
def store(tokenizers, tmp_path_factory):
    """40 plain pairs, then 20 with a tag."""
    source = JoinedSource("both", [Houses("h", 40), TaggedSource(Houses("h", 20), "<t>")])
    return prepare_split(source, tokenizers, tmp_path_factory.mktemp("s") / "store", POLICIES, num_workers=1)


def ids(sides) -> list[tuple[list[int], list[int]]]:
    lists = ([side.ids[o : o + n].tolist() for o, n in zip(side.offsets, side.lengths, strict=True)] for side in sides)
    return list(zip(*lists, strict=True))


def visits(pairs, passes=0) -> Visits:
    return Visits(np.array(pairs, np.int64), np.broadcast_to(np.array(passes, np.int64), (len(pairs),)))


CHANGES = (Appended("here"), Appended("now", 0.1))


@given(st.lists(st.tuples(st.integers(0, 59), st.integers(0, 5)), min_size=1, max_size=30), st.booleans())
@settings(deadline=None, max_examples=60)
def test_ids_are_a_function_of_the_pair_and_its_pass(store, tokenizers, rows, segmented):
    """Not of the pairs beside it, of their order, or of the process."""
    draw = DrawnPairs(store, tokenizers, CONFIG, 0, CHANGES, Spelled() if segmented else None)
    together = ids(draw(visits(*map(list, zip(*rows, strict=True)))))
    copy = dataclasses.replace(draw)
    assert together == [ids(copy(visits([pair], number)))[0] for pair, number in rows]


def test_a_draw_can_be_pickled(store, tokenizers):
    draw = DrawnPairs(store, tokenizers, CONFIG, 0, CHANGES, Spelled())
    before = ids(draw(visits(range(60))))
    assert ids(pickle.loads(pickle.dumps(draw))(visits(range(60)))) == before


def test_passes_and_seeds_draw_other_ids(store, tokenizers):
    drawn = [
        str(ids(DrawnPairs(store, tokenizers, CONFIG, seed, CHANGES, segmentation)(visits(range(60), number))))
        for seed in (0, 1)
        for number in (0, 1)
        for segmentation in (None, Spelled())
    ]
    assert len(set(drawn)) == 8


def test_without_a_change_the_ids_are_those_of_the_store(store, tokenizers):
    draw = DrawnPairs(store, tokenizers, CONFIG, 0, (Appended("x", 0.0),))
    assert ids(draw(visits(range(60), 3))) == [(store.source(i).tolist(), store.target(i).tolist()) for i in range(60)]


@given(st.floats(0.0, 1.0), st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_a_change_has_its_probability(probability, seed):
    """Within five standard deviations; independent of another change."""
    draw = DrawnPairs(None, None, CONFIG, seed, (Appended("a", probability), Appended("b", 0.5)))
    count = 4000
    keys = np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)
    first, second = draw.chosen(keys)
    assert abs(first.sum() - count * probability) <= 5 * math.sqrt(count * probability * (1 - probability)) + 1e-9
    both = probability / 2
    assert abs((first & second).sum() - count * both) <= 5 * math.sqrt(count * both * (1 - both)) + 1e-9


def test_pairs_are_chosen_as_often_in_every_pass(store, tokenizers):
    draw = DrawnPairs(store, tokenizers, CONFIG, 0, (Appended("here", 0.25),))
    word = tokenizers.target.encode_text("here")
    changed = [
        [target[-1 - len(word) : -1] == word for _, target in ids(draw(visits(range(60), number)))]
        for number in range(40)
    ]
    assert abs(np.sum(changed) - 600) <= 5 * math.sqrt(2400 * 0.25 * 0.75)
    assert len({str(row) for row in changed}) == 40


def test_changes_come_before_the_segmentation_and_leave_symbols_in_front(store, tokenizers):
    draw = DrawnPairs(store, tokenizers, CONFIG, 0, (Appended("<t>", 1.0),), Spelled())
    symbol = tokenizers.source.control_symbols["<t>"]
    for i, (source, target) in enumerate(ids(draw(visits(range(60))))):
        assert source.count(symbol) == (i >= 40) and (source[0] == symbol) == (i >= 40) and symbol not in target
        text = tokenizers.source.decode(source[i >= 40 : -1]).replace(" ", "")
        assert text == f"thesmallhouse{i % 40}standsthere<t>", "in the midst of a text, a symbol is text"


@pytest.mark.parametrize(
    ("keys", "most"), [({}, 60), ({"pack_length": 24}, 24), ({"batching": "buckets", "batch_tokens": 40}, 40)]
)
def test_a_pair_that_gets_too_long_keeps_its_ids(store, tokenizers, keys, most):
    config = dataclasses.replace(CONFIG, **keys)
    draw = DrawnPairs(store, tokenizers, config, 0, (), Spelled())
    lengths = [max(map(len, pair)) for number in range(9) for pair in ids(draw(visits(range(60), number)))]
    assert draw.most == most and max(lengths) <= draw.longest == max(most, store.longest)
    kept = [
        pair == (store.source(i).tolist(), store.target(i).tolist())
        for i, pair in enumerate(ids(draw(visits(range(60)))))
    ]
    assert any(kept) == (most < 60)


def test_truncated_pairs_keep_their_ids(tokenizers, tmp_path):
    policies = dataclasses.replace(POLICIES, max_length=4)
    store = prepare_split(Houses("h", 9), tokenizers, tmp_path / "s", policies, num_workers=1)
    assert store.meta["truncated"] == 9
    draw = DrawnPairs(store, tokenizers, dataclasses.replace(CONFIG, max_length=4), 0, (Appended("x", 1.0),), Spelled())
    assert ids(draw(visits(range(9)))) == [(store.source(i).tolist(), store.target(i).tolist()) for i in range(9)]


def test_what_the_ids_depend_on_is_in_the_key(store, tokenizers):
    draw = DrawnPairs(store, tokenizers, CONFIG, 0, CHANGES, Spelled())
    others = [
        dataclasses.replace(draw, **field)
        for field in (
            dict(seed=1),
            dict(changes=()),
            dict(changes=(Appended("here", 0.31), CHANGES[1])),
            dict(changes=CHANGES[::-1]),
            dict(segmentation=None),
            dict(config=dataclasses.replace(CONFIG, max_length=30)),
        )
    ]
    assert len({str(one.key) for one in [draw, *others]}) == 7
