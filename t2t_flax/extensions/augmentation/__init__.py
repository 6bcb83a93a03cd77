"""Augmentation: training pairs whose text or segmentation is drawn anew in each pass; BPE codes of subword-nmt as a tokenizer."""

import dataclasses
from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import key
from t2t_flax.errors import UserError
from t2t_flax.registry import DATA_HOOKS, GROUPS, TOKENIZER_FILES, TOKENIZERS, Features

TOKENIZER_OF_KIND = {"bpe_dropout": "bpe", "unigram_alpha": "unigram"}
"""Kind of subword regularisation, a key -> the value of data.tokenizer that it needs."""


@dataclass(frozen=True)
class Subwords:
    bpe_dropout: float = key(0.0, "probability with which a merge of BPE is skipped; 0 = none", low=0.0, high=0.999)
    unigram_alpha: float = key(
        0.0, "with data.tokenizer = unigram: a segmentation x has probability P(x)^alpha over the sum of all; 0 = none, only "
        "the most probable one", low=0.0, high=100.0,
    )  # fmt: skip

    def check(self, config: Config) -> None:
        """Raises UserError for another tokenizer or task, and for subword_nmt without codes."""
        if config.data.tokenizer == "subword_nmt" and not config.data.tokenizer_model:
            raise UserError("config.data.tokenizer = subword_nmt needs its BPE codes: set config.data.tokenizer_model.")
        for name, tokenizer in TOKENIZER_OF_KIND.items():
            if not (value := getattr(self, name)):
                continue
            d = config.data
            if d.task != "translation" or d.tokenizer != tokenizer:
                found = f"task = {d.task}" if d.task != "translation" else f"tokenizer = {d.tokenizer}"
                raise UserError(
                    f"config.subwords.{name} = {value} needs data.tokenizer = {tokenizer}, not data.{found}."
                )


def _share(what: str) -> float:
    return key(0.0, f"share of training pairs {what}; drawn anew in each pass", low=0.0, high=1.0)


@dataclass(frozen=True)
class Noise:
    """Probabilities, in the order in which the changes are made."""

    unpunctuated: float = _share("without the final punctuation, on both sides")
    typos: float = _share("with typos in the source, in about every tenth word")
    lower_case: float = _share("with the source in lower case")
    title_case: float = _share("in title case, on both sides")
    upper_case: float = _share("in upper case, on both sides")
    placeholders: float = _share(
        "in which a word that both sides have is replaced by a placeholder such as {name}; others are left alone"
    )
    emoji: float = _share("with an emoji on both sides: beside a word that both have, else at the end")
    copies: float = _share("replaced by a few random words, the same on both sides")

    def check(self, config: Config) -> None:
        """Raises UserError for a task in which a source is more than text."""
        used = [field.name for field in dataclasses.fields(self) if getattr(self, field.name)]
        if used and config.data.task != "translation":
            raise UserError(
                f"config.noise.{used[0]} = {getattr(self, used[0])} changes text of data.task = translation, not of "
                f"{config.data.task}."
            )


TEXT_CHANGES = Features()
"""Modules with `text_changes(config) -> list of drawn_pairs.TextChange`, made after those of noise."""
_HOOK = "t2t_flax.extensions.augmentation.hook"


def add_text_changes(module: str, *when: str) -> None:
    """Adds changes of the texts of training pairs. when: keys of which one is set in runs with these changes."""
    TEXT_CHANGES.add(module, *when)
    DATA_HOOKS.add(_HOOK, *DATA_HOOKS[_HOOK], *when)


GROUPS.add("subwords", Subwords)
GROUPS.add("noise", Noise)
DATA_HOOKS.add(
    _HOOK,
    *(f"subwords.{field.name}" for field in dataclasses.fields(Subwords)),
    *(f"noise.{field.name}" for field in dataclasses.fields(Noise)),
)
TOKENIZERS.add("subword_nmt", "t2t_flax.extensions.augmentation.subword_nmt:SubwordNmtTokenizer")
TOKENIZER_FILES.add(
    "subword-nmt codes and vocabulary", "t2t_flax.extensions.augmentation.subword_nmt:SubwordNmtTokenizer"
)
