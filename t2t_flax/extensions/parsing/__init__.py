"""Constituency parsing (6.3): trees as sequences, scored by evalb's labelled F1."""

from dataclasses import dataclass
from typing import Any

from t2t_flax.config.keys import TRANSLATIONS, key, one_of
from t2t_flax.registry import GROUPS, TASKS, TOKENIZER_FILES, Group


@dataclass(frozen=True)
class ParsingKeys(Group):
    grammar: bool = key(
        False,
        "whether the search writes nothing but trees over the words of the sentence: brackets in"
        " pairs, one tag for each word",
        mutable=True,
        changes=TRANSLATIONS,
        when=one_of("data.task", "parsing"),
    )
    word_numbers: int = key(
        0,
        "both sides number the words up to this, over and over: a token after each source word, a"
        " part of each tag; so the model need not count. 0 = none",
        low=0,
        high=1000,
        when=one_of("data.task", "parsing"),
    )

    @staticmethod
    def presets() -> dict[str, Any]:
        from t2t_flax.extensions.parsing.presets import PRESETS

        return PRESETS

    def step_change(self, config: Any) -> Any:
        if not self.grammar:
            return None
        from t2t_flax.extensions.parsing import grammar

        return grammar


_FILES = "t2t_flax.extensions.parsing.numbered"
TOKENIZER_FILES.add("SentencePiece model with numbers of words", f"{_FILES}:NumberedWords")
TOKENIZER_FILES.add("symbols of trees with numbers of words", f"{_FILES}:NumberedSymbols")
TASKS.add(
    "parsing",
    "t2t_flax.extensions.parsing.task:Parsing",
    ignores=("data.pretokenized", "eval.sacrebleu_tokenizer"),
)
GROUPS.add("parsing", ParsingKeys)
TOKENIZER_FILES.add(
    "symbols split at spaces", "t2t_flax.extensions.shared.list_tokenizer:SymbolTokenizer"
)
