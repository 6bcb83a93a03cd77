"""Pairs drawn anew in each pass.

Functions of (seed, pass, pair), in any process, and with what else changes a run.
"""

import dataclasses
import pickle

import numpy as np
import pytest
from helpers.configs import small_config
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.config import Data
from t2t_flax.data.batching.windows import Samples
from t2t_flax.data.preprocess import Policies, prepare_split
from t2t_flax.data.sources import JoinedSource, Source
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.extensions.shared.tagged_source import TaggedSource
from t2t_flax.extensions.subwords.drawn_pairs import DrawnPairs

POLICIES = Policies(max_length=60, on_too_long="truncate", empty_lines="drop", keep_texts=True)
CONFIG = small_config(data=dict(max_length=60, pack_length=60, batch_tokens=300)).data
KINDS = {"bpe_dropout": ("bpe", 0.5), "unigram_alpha": ("unigram", 0.1)}


class Houses(Source):
    def read(self):
        return (
            (f"the small house {i} stands there", f"das kleine Haus {i} steht dort")
            for i in range(self.count)
        )

    def fingerprint(self):
        return f"houses {self.count}"


@pytest.fixture(scope="module", params=KINDS)
def drawn(request, tmp_path_factory) -> DrawnPairs:
    """40 plain pairs, then 20 with a tag."""
    kind, strength = KINDS[request.param]
    tokenizers = train_tokenizers(
        Houses("h", 60), Data(tokenizer=kind, vocab_size=41, byte_fallback=False), ["<t>"]
    )
    source = JoinedSource("both", [Houses("h", 40), TaggedSource(Houses("h", 20), "<t>")])
    store = prepare_split(
        source, tokenizers, tmp_path_factory.mktemp("s") / "store", POLICIES, num_workers=1
    )
    return DrawnPairs(store, tokenizers, CONFIG, 0, request.param, strength)


def ids(sides) -> list[tuple[list[int], list[int]]]:
    lists = (
        [side.ids[o : o + n].tolist() for o, n in zip(side.offsets, side.lengths, strict=True)]
        for side in sides
    )
    return list(zip(*lists, strict=True))


def samples(pairs, epochs=0) -> Samples:
    return Samples(
        np.array(pairs, np.int64), np.broadcast_to(np.array(epochs, np.int64), (len(pairs),))
    )


def stored(draw: DrawnPairs, pairs) -> list[tuple[list[int], list[int]]]:
    return [(draw.store.source(i).tolist(), draw.store.target(i).tolist()) for i in pairs]


@given(st.lists(st.tuples(st.integers(0, 59), st.integers(0, 5)), min_size=1, max_size=30))
@settings(deadline=None, max_examples=60)
def test_ids_are_a_function_of_the_pair_and_its_pass(drawn, rows):
    """They depend on no pair beside it, no order and no process."""
    together = ids(drawn.read(samples(*map(list, zip(*rows, strict=True)))))
    copy = pickle.loads(pickle.dumps(drawn))
    assert together == [ids(copy.read(samples([pair], number)))[0] for pair, number in rows]


def test_passes_and_seeds_draw_other_ids_of_the_same_text(drawn):
    source, target = drawn.tokenizers.source, drawn.tokenizers.target
    symbol, found = source.control_symbols["<t>"], set()
    for seed in (0, 1):
        for number in (0, 1):
            rows = ids(dataclasses.replace(drawn, seed=seed).read(samples(range(60), number)))
            found.add(str(rows))
            for i, (row, own) in enumerate(zip(rows, stored(drawn, range(60)), strict=True)):
                assert row[0].count(symbol) == (row[0][0] == symbol) == (i >= 40), (
                    "a symbol stays in front"
                )
                assert source.decode(row[0]) == source.decode(own[0])
                assert target.decode(row[1]) == target.decode(own[1])
    assert len(found) == 4


@pytest.mark.parametrize(
    ("keys", "most"),
    [({}, 60), ({"pack_length": 24}, 24), ({"batching": "buckets", "batch_tokens": 40}, 40)],
)
def test_a_pair_that_gets_too_long_keeps_its_ids(drawn, keys, most):
    strength = {"bpe_dropout": 0.8, "unigram_alpha": 0.01}[drawn.kind]
    draw = dataclasses.replace(drawn, config=dataclasses.replace(CONFIG, **keys), strength=strength)
    rows = [ids(draw.read(samples(range(60), number))) for number in range(9)]
    lengths = [max(map(len, pair)) for row in rows for pair in row]
    assert draw.most == most and max(lengths) <= draw.longest == max(most, draw.store.longest)
    kept = [pair == own for pair, own in zip(rows[0], stored(draw, range(60)), strict=True)]
    assert any(kept) == (most == 24)


def test_truncated_pairs_keep_their_ids(drawn, tmp_path):
    policies = dataclasses.replace(POLICIES, max_length=4)
    store = prepare_split(Houses("h", 9), drawn.tokenizers, tmp_path / "s", policies, num_workers=1)
    assert store.meta["truncated"] == 9
    draw = dataclasses.replace(drawn, store=store, config=dataclasses.replace(CONFIG, max_length=4))
    assert ids(draw.read(samples(range(9)))) == stored(draw, range(9))


def test_what_the_ids_depend_on_is_in_the_key(drawn):
    shorter = dataclasses.replace(CONFIG, max_length=30)
    others = [dict(seed=1), dict(kind="x"), dict(strength=0.7), dict(config=shorter)]
    keys = [drawn.key, *(dataclasses.replace(drawn, **field).key for field in others)]
    assert len(set(map(str, keys))) == 5
