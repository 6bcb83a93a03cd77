"""The rule that a search writes only trees over its sentence's words, against all sequences."""

import itertools

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, small_config
from helpers.ruled_steps import ruled_cache
from helpers.table_model import PARAMS, TableModel, sentences
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax import config as config_lib
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.beam_search import BeamSearch
from t2t_flax.decoding.sampling import Sampling, random_keys
from t2t_flax.decoding.search_loop import run_search
from t2t_flax.decoding.translator import Translator
from t2t_flax.extensions.parsing.grammar import token_rule
from t2t_flax.extensions.parsing.numbered import NumberedSymbols
from t2t_flax.extensions.parsing.trees import from_linear
from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer
from t2t_flax.extensions.shared.token_rules import RuledStep

EOS = 1


def search(symbols, words, options, caps, seeds, numbers=0):
    """The outputs of each sentence, as text."""
    tokenizer = NumberedSymbols.of([symbols], numbers) if numbers else SymbolTokenizer.of([symbols])
    model = TableModel(tokenizer.vocab_size, 16)
    rule = token_rule(config_lib.Config(), TokenizerPair(tokenizer, tokenizer))
    keys = random_keys(0, np.arange(len(caps)), options.width) if options.draws else None
    inputs = sentences(caps, None, keys, words=words)
    cache = ruled_cache(model.start(seeds, options.width, 8), rule, inputs, options.width, 8)
    result = run_search(RuledStep(model, rule), PARAMS, cache, options, inputs, lengths=(8, 32))
    result = jax.tree.map(np.asarray, result)
    return [
        [
            (tokenizer.decode(ids[:n].tolist()), end)
            for ids, n, end in zip(*of_line, strict=True)
            if n
        ]
        for of_line in zip(result.tokens, result.lengths, result.finished, strict=True)
    ]


def is_tree(text: str, words: int) -> bool:
    return from_linear(text, ["w"] * words)[1]


@pytest.mark.parametrize("numbers", [0, 1, 2, 5])
def test_a_wide_beam_finds_all_trees(numbers):
    symbols = ["NN", "(S", ")S"]
    outputs = search(
        " ".join(symbols), [1, 2, 3], BeamSearch(100, 0.6, 100), [6] * 3, [1, 2, 3], numbers
    )
    for words, found in zip((1, 2, 3), outputs, strict=True):
        sequences = (" ".join(s) for n in range(1, 6) for s in itertools.product(symbols, repeat=n))
        assert {text for text, _ in found} == {text for text in sequences if is_tree(text, words)}
        assert all(finished for _, finished in found) and len({text for text, _ in found}) == len(
            found
        )


SYMBOLS = "NN VB , (S )S (NP )NP ( ) (X )Y"


@settings(max_examples=8)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 12)), min_size=6, max_size=6),
    st.sampled_from([BeamSearch(1, 0.6, 1), BeamSearch(3, 0.6, 3), Sampling(3), Sampling(1, 0.0)]),
)
def test_every_output_is_a_tree_if_there_is_room_for_one(sentences, options):
    words = [count for count, _ in sentences]
    caps = [count + 1 + spare for count, spare in sentences]
    for count, found in zip(
        words, search(SYMBOLS, words, options, caps, np.arange(6) + 40), strict=True
    ):
        assert found
        for text, finished in found:
            assert finished and is_tree(text, count), text
            # A label that cannot be closed, or opened.
            assert not {"(X", ")Y", "<unk>"} & set(text.split())


def test_where_there_is_no_room_words_get_tags_as_far_as_it_goes():
    ((text, finished),) = search(SYMBOLS, [6], BeamSearch(2, 0.6, 1), [4], [3])[0]
    assert not finished and len(text.split()) == 4
    assert not any(symbol[0] in "()" and len(symbol) > 1 for symbol in text.split())


@pytest.mark.parametrize("strategy", ["beam", "sample"])
def test_a_model_with_random_parameters_writes_trees(strategy):
    target = SymbolTokenizer.of([SYMBOLS])
    source = SymbolTokenizer.of(["the dog saw a cat ."])
    config = small_config(
        data=dict(task="parsing", joint_vocabulary=False),
        model=dict(
            tie_embeddings="decoder",
            d_model=16,
            d_ff=16,
            num_encoder_layers=1,
            num_decoder_layers=1,
        ),
        decode=dict(strategy=strategy, n_best=2, batch_size=4, max_length_offset=12),
    )
    model, _, state, _ = model_and_state(config, vocab=target.vocab_size)
    lines = ["the dog saw the cat .", "the cat .", "dog", "a dog saw a cat"]
    trees = {}
    for grammar in (False, True):
        with_rule = config.with_values({"parsing.grammar": grammar})
        translator = Translator(model, TokenizerPair(source, target), devices_mesh(), with_rule)
        trees[grammar] = [
            from_linear(h.text, line.split())[1]
            for line, translation in zip(
                lines, translator.translate(state.params, lines), strict=True
            )
            for h in translation.hypotheses
        ]
    assert all(trees[True]) and not all(trees[False])
