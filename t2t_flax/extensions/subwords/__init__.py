"""Subwords: segmentations drawn anew in each pass; subword-nmt's BPE as a tokenizer."""

from dataclasses import dataclass
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.keys import key
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS, TOKENIZER_FILES, TOKENIZERS, Group

TOKENIZER_OF_KIND = {"bpe_dropout": "bpe", "unigram_alpha": "unigram"}
"""Kind of subword regularization: a key -> its value of data.tokenizer."""


@dataclass(frozen=True)
class Subwords(Group):
    bpe_dropout: float = key(
        0.0, "probability with which a merge of BPE is skipped; 0 = none", low=0.0, high=0.999
    )
    unigram_alpha: float = key(
        0.0,
        "with data.tokenizer = unigram: a segmentation x has probability P(x)^alpha over the sum of"
        " all; 0 = none, only the most probable one",
        low=0.0,
        high=100.0,
    )

    def check(self, config: Config) -> None:
        """Raise UserError for another tokenizer or task and for missing subword_nmt codes."""
        if config.data.tokenizer == "subword_nmt" and not config.data.tokenizer_model:
            raise UserError(
                "config.data.tokenizer = subword_nmt needs its BPE codes: set"
                " config.data.tokenizer_model."
            )
        for name, tokenizer in TOKENIZER_OF_KIND.items():
            if not (value := getattr(self, name)):
                continue
            d = config.data
            if d.task != "translation" or d.tokenizer != tokenizer:
                raise UserError(
                    f"config.subwords.{name} = {value} needs data.task = translation and"
                    f" data.tokenizer = {tokenizer}, not {d.task} and {d.tokenizer}."
                )

    def data_hook(self, config: Config) -> Any:
        if not self.bpe_dropout and not self.unigram_alpha:
            return None
        from t2t_flax.extensions.subwords.hook import SubwordsHook

        return SubwordsHook(config)


_HERE = "t2t_flax.extensions.subwords"
GROUPS.add("subwords", Subwords)
TOKENIZERS.add("subword_nmt", f"{_HERE}.subword_nmt:SubwordNmtTokenizer")
TOKENIZER_FILES.add("subword-nmt codes and vocabulary", f"{_HERE}.subword_nmt:SubwordNmtTokenizer")
