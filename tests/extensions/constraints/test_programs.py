"""Compiled programs are kept by all that their rules and searches follow from."""

import pytest

from t2t_flax.config import Config
from t2t_flax.config.keys import TRANSLATIONS
from t2t_flax.config.schema import keys_that_change
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.search_loop import grow
from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer
from t2t_flax.registry import SEARCHES, STEPS

described = pytest.importorskip("t2t_flax.extensions.serving.programs").described
CONSTRAINED = {"decode.strategy": "constrained_beam", "constraints.lines": "tabs", "decode.beam_size": 4}
BEAM = {"constraints.ordered": True, "decode.beam_size": 6, "decode.alpha": 0.7, "decode.n_best": 2,
        "decode.length_penalty": "power", "decode.early_stopping": "beam_full"}  # fmt: skip
RULES = {"constraints.suppress": "<unk>", "constraints.no_repeat_ngram": 3, "constraints.min_length": 2,
         "constraints.repetition_penalty": 1.5, "constraints.avoid": "words.txt"}  # fmt: skip
SAMPLE = {"decode.temperature": 0.5, "decode.top_k": 3, "decode.top_p": 0.5, "decode.epsilon": 0.1,
          "decode.n_best": 3}  # fmt: skip
READ_AS_ARRAYS = {"constraints.lines", "constraints.glossary"}
"""What they ask for is an input of the program."""


def program_of(values, words="a b c"):
    config, tokenizer = Config().with_values(values), SymbolTokenizer.of([words])
    tokenizers = TokenizerPair(tokenizer, tokenizer)
    search = SEARCHES.load(config.decode.strategy)(config, tokenizers)
    return described(grow, ((search, *(rule.token_rule(config, tokenizers) for rule in STEPS.of(config))), 3))


@pytest.mark.parametrize(
    "base, changes",
    [(CONSTRAINED, BEAM | RULES), ({"decode.strategy": "sample"}, SAMPLE | RULES)],
    ids=["constrained", "sample"],
)
def test_each_key_of_a_search_or_rule_changes_the_program(base, changes):
    each = [program_of(base), *(program_of(base | {key: value}) for key, value in changes.items())]
    assert len(set(each)) == len(each)
    assert program_of(base) == each[0]


def test_every_key_that_changes_translations_is_tried():
    keys = {name for name in keys_that_change(TRANSLATIONS) if name.startswith("constraints.")}
    tried = {name for name in BEAM | RULES if name.startswith("constraints.")}
    assert keys == READ_AS_ARRAYS | tried
