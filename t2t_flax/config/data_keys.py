"""Keys of the data: corpus, tokenizers and batches.

Reads the names of the sets in data.train, data.valid and data.test.
"""

import functools
import operator
import re
from dataclasses import dataclass

from t2t_flax.config.keys import (
    MODEL,
    READ,
    SCORES,
    TEXT,
    TRANSLATIONS,
    WRITTEN,
    When,
    key,
    mutable_key,
    one_of,
)
from t2t_flax.errors import UserError
from t2t_flax.language import named_languages
from t2t_flax.registry import TASKS, TOKENIZERS

PAD, EOS, UNK = 0, 1, 2
FORM = "NAME=SRC,TGT; NAME=SRC,TGT"
RESERVED = ("train", "valid", "test")
DEFAULT_LANGUAGES = "en", "de"
VALID_PREFIX = "valid."
"""Prefix of validation set names, where they stand beside test set names."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ENTRY = re.compile(r"\s*([^=/\\,:;\s]+)\s*=(.*)", re.DOTALL)
_trained_key = functools.partial(
    key, when=When((("data.tokenizer_model", operator.not_),), "config.data.tokenizer_model empty")
)
"""Key for the training of a tokenizer."""


@dataclass(frozen=True)
class Data:
    task: str = key(
        "translation",
        "translation: pairs of sentences, scored by BLEU; others belong to extensions",
        choices=TASKS,
        changes=TRANSLATIONS,
    )
    train: str = key(
        "",
        "training pairs: 'SRC,TGT' files (plain or .gz, .bz2, .xz, .zst), 'toy:SPLIT', or a form of"
        " an extension, such as 'tfds:NAME:SPLIT'; several sources: 'NAME=SRC,TGT; NAME=SRC,TGT'",
        kind=READ,
    )
    valid: str = mutable_key(
        "",
        "validation pairs, in the same forms; 'SRC,REF1,REF2' = several references; several sets,"
        " of whose metrics the mean counts: 'NAME=SRC,TGT; NAME=SRC,TGT'",
        kind=READ,
    )
    test: str = mutable_key(
        "",
        "test pairs, in the same forms as validation pairs; several sets with a record each:"
        " 'NAME=SRC,TGT; NAME=SRC,TGT'",
        kind=READ,
    )
    root: str = mutable_key(
        "",
        "folder that the relative paths above are resolved against; for tfds its data_dir",
        kind=READ,
    )
    source_language: str = key(
        "",
        "language code of the source side, of ISO 639; empty = as the names of files or columns say"
        " it (train.en,train.de), en where none does",
        changes=SCORES,
        kind=TEXT,
    )
    target_language: str = key(
        "",
        "language code of the target side, of ISO 639; empty = as the names of files or columns say"
        " it (train.en,train.de), de where none does",
        changes=SCORES,
        kind=TEXT,
    )
    cache: str = mutable_key(
        "", "folder of tokenised stores, shared between runs; empty = WORKDIR/data", kind=WRITTEN
    )
    num_workers: int = mutable_key(
        0,
        "processes that tokenise, 0 = as the cores allow, 1 = this one alone; above 1 they also lay"
        " out updates, which else a thread does",
        low=0,
        high=1024,
    )
    corpus: str = mutable_key("", "name of the corpus for records, beside its digest", kind=TEXT)
    pretokenized: bool = key(
        False,
        "the text is already Moses-tokenised, and BLEU is computed on its tokens as they are",
        changes=SCORES,
    )
    tokenizer: str = key(
        "bpe",
        "bpe, unigram = a SentencePiece model trained on the run's own text; others belong to"
        " extensions",
        choices=TOKENIZERS,
    )
    tokenizer_model: str = key(
        "",
        "existing tokenizer: a SentencePiece .model file, or a folder with source and target; or"
        " what the tokenizer of an extension is built from",
        kind=READ,
    )
    vocab_size: int = key(
        37000,
        "size of the vocabulary, or of each of the two if not joint (5.1)",
        unit="pieces",
        low=8,
        high=10**7,
    )
    joint_vocabulary: bool = key(
        True,
        "one vocabulary for both languages (5.1); needed by model.tie_embeddings = all",
        changes=MODEL,
    )
    tokenizer_sentences: int = _trained_key(
        2_000_000,
        "maximum number of sentences on which the tokenizer is trained",
        unit="sentences",
        low=1,
    )
    character_coverage: float = _trained_key(
        1.0, "fraction of the text's characters that have a piece", low=0.98, high=1.0
    )
    byte_fallback: bool = _trained_key(
        True, "spell unseen characters in bytes (takes 256 pieces) instead of <unk>"
    )
    normalization: str = _trained_key(
        "nmt_nfkc", "Unicode normalisation inside the tokenizer", choices=("nmt_nfkc", "identity")
    )
    split_digits: bool = _trained_key(False, "every digit is a piece of its own")
    max_length: int = key(
        256,
        "maximum length of either side of a training pair, EOS included",
        unit="tokens",
        low=2,
        high=2**17,
    )
    on_too_long: str = key(
        "drop",
        "drop or truncate longer training pairs; their number is reported",
        choices=("drop", "truncate"),
    )
    source_eos: bool = key(True, "append EOS to source sentences too", changes=TRANSLATIONS)
    batch_tokens: int = key(
        25000,
        "token slots of each side in an update over all devices (5.1): batch_tokens // pack_length"
        " packed rows, of whose slots about 97 % are filled",
        unit="tokens",
        low=16,
        high=2**28,
    )
    batching: str = key(
        "packed",
        "packed = several pairs per row; buckets = one pair per row, pairs of similar length"
        " together (5.1)",
        choices=("packed", "buckets"),
    )
    pack_length: int = key(
        256,
        "length of a packed row",
        unit="tokens",
        low=8,
        high=2**17,
        when=one_of("data.batching", "packed"),
    )
    microbatch_tokens: int = mutable_key(
        0,
        "padded target tokens per device and microbatch, at least one row; gradients are"
        " accumulated over the microbatches of an update. 0 = one microbatch",
        low=0,
    )

    def __post_init__(self):
        """Fill in empty languages from the first source with languages in its names.

        Without such a source they are en and de. A side without a language in the names stays
        empty.
        """
        if self.source_language and self.target_language:
            return
        specs = [*self.train_sources.values(), *self.valid_sets.values(), *self.test_sets.values()]
        sides = next((pair[:2] for pair in map(named_languages, specs) if any(pair)), None)
        source, target = (
            (side.code if side else "" for side in sides) if sides else DEFAULT_LANGUAGES
        )
        object.__setattr__(self, "source_language", self.source_language or source)
        object.__setattr__(self, "target_language", self.target_language or target)

    @property
    def train_sources(self) -> dict[str, str]:
        """Sources of `train` by name, in order; see `_parse`.

        A single source without a name is `{"train": spec}`.
        """
        return _parse(self.train, "train", "training source", ())

    @property
    def valid_sets(self) -> dict[str, str]:
        """Sources of `valid` by name, in order; see `_parse`.

        A single source without a name is `{"valid": spec}`. Sources with names are
        `{"valid.NAME": ...}`. `{}` if there are none.
        """
        sources = _parse(self.valid, "valid", "validation set", RESERVED)
        return {
            name if name == "valid" else VALID_PREFIX + name: source
            for name, source in sources.items()
        }

    @property
    def test_sets(self) -> dict[str, str]:
        """Sources of `test` by name, in order; see `_parse`.

        A single source without a name is `{"test": spec}`. `{}` if there are none.
        """
        return _parse(self.test, "test", "test set", RESERVED)


def _parse(spec: str, split: str, what: str, reserved: tuple[str, ...]) -> dict[str, str]:
    """Return the sources in a value by name.

    A value that begins with `NAME=` is a list of named sources, separated by semicolons. Any other
    value is one source, whose paths can contain both characters. Write `./NAME=...` for a path that
    itself begins like `NAME=`. Raises UserError for a name that a file cannot have, a name used
    twice, and a part without name or source.
    """
    key = f"config.data.{split} = {spec!r}"
    if not spec.strip():
        return {}
    parts = [part for part in spec.split(";") if part.strip()]
    if not parts or not _ENTRY.fullmatch(parts[0]):
        if any(map(_ENTRY.fullmatch, parts[1:])):
            raise UserError(f"{key}: the first {what} has no name. Write several as {FORM!r}.")
        return {split: spec}
    sources: dict[str, str] = {}
    for part in parts:
        entry = _ENTRY.fullmatch(part)
        if not entry:
            raise UserError(
                f"{key}: {part.strip()!r} has no name. Write several {what}s as {FORM!r}."
            )
        name, source = entry[1], entry[2].strip()
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{key}: {name!r} cannot name a {what}, because it becomes a file name: use at "
                "most 64 letters, digits, '_', '-' and '.', beginning with a letter or digit."
            )
        if name.lower() in reserved or name.startswith(VALID_PREFIX):
            raise UserError(
                f"{key}: {name!r} is the name of a split, or begins with {VALID_PREFIX} as those of"
                f" validation sets do; give the {what} another name."
            )
        if not source:
            raise UserError(f"{key}: the {what} {name!r} names no source. Expected {FORM!r}.")
        if name.lower() in map(str.lower, sources):
            raise UserError(f"{key}: two {what}s are named {name!r}.")
        sources[name] = source
    return sources
