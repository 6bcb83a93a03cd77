"""Corpora: table, Parquet and Hugging Face files, TFDS; filters of pairs.

The files are tab-separated, JSON-lines and Parquet files and saved datasets of Hugging Face.
"""

import re
from dataclasses import dataclass
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.keys import CODE, TEXT, is_set, key
from t2t_flax.errors import UserError
from t2t_flax.registry import COMMANDS, GROUPS, SOURCES, Command, Group, SourceForm

SIDES = ("source", "target", "either", "pair")
"""Values of filters.held_out.

A held-out pair matches by one side, by each of them, or by both together.
"""


@dataclass(frozen=True)
class Filters(Group):
    duplicates: bool = key(False, "drop training pairs that occurred before, in any source")
    length_ratio: float = key(
        0.0,
        "drop training pairs of which one side has more than this many times the tokens of the"
        " other; 0 = none",
        low=0.0,
    )
    copies: bool = key(False, "drop training pairs whose sides are equal")
    held_out: str = key(
        "",
        "drop training pairs that occur in data.valid or data.test, compared without case,"
        " punctuation and spaces: the source, the target, either, or the pair; empty = none",
        kind=TEXT,
    )
    language: float = key(
        0.0,
        "drop training pairs with a side that is identified as another language, at least this"
        " probable against the side's own (0.95 drops few right pairs, even short ones); 0 = none."
        " Needs the extra langid",
        low=0.0,
        high=1.0,
    )
    scorer: str = key(
        "",
        "a Python function of a list of (source, target) that returns a number for each, as"
        " FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION; training pairs that it scores below"
        " filters.score are dropped; empty = none",
        kind=CODE,
    )
    score: float = key(
        0.0,
        "the least score that filters.scorer must give a training pair",
        when=is_set("filters.scorer"),
    )

    def check(self, config: Config) -> None:
        """Raise UserError for a limit that drops correct or all pairs.

        Also raises it for languages of a task without languages.
        """
        if self.held_out not in ("", *SIDES):
            raise UserError(
                f"config.filters.held_out = {self.held_out!r}: expected one of {', '.join(SIDES)},"
                " or nothing."
            )
        if self.held_out and not (config.data.valid_sets or config.data.test_sets):
            raise UserError(
                f"config.filters.held_out = {self.held_out!r}: data.valid and data.test name no"
                " set."
            )
        if self.held_out in ("target", "either") and config.data.task == "parsing":
            raise UserError(
                f"config.filters.held_out = {self.held_out!r} would drop trees that are equal but"
                " for their words, with config.data.task = parsing: use source or pair."
            )
        if self.scorer and not re.fullmatch(r".+:\w+", self.scorer):
            raise UserError(
                f"config.filters.scorer = {self.scorer[:100]!r}: expected FILE.py:FUNCTION or"
                " PACKAGE.MODULE:FUNCTION."
            )
        if 0 < self.length_ratio < 1:
            raise UserError(
                f"config.filters.length_ratio = {self.length_ratio} would drop every pair: the"
                " longer side has at least as many tokens as the other. Use 1 or more, or 0 for no"
                " limit."
            )
        if 0 < self.language < 0.5:
            raise UserError(
                f"config.filters.language = {self.language} is less than 0.5, where another"
                " language is as probable as the side's own. Use 0.5 or more (0.95 is safe for"
                " short text), or 0 for no filter."
            )
        if self.language and config.data.task != "translation":
            raise UserError(
                f"config.filters.language = {self.language} needs data.task = translation, not"
                f" {config.data.task}."
            )

    def data_hook(self, config: Config) -> Any:
        limits = self.length_ratio, self.language
        if not any((self.duplicates, self.copies, self.held_out, self.scorer, *limits)):
            return None
        from t2t_flax.extensions.corpora.filters import FiltersHook

        return FiltersHook(config)


_HERE = "t2t_flax.extensions.corpora"
SOURCES.add(
    "tsv",
    SourceForm(
        "'FILE.tsv', 'FILE.tsv.gz' ... (source TAB target), 'tsv:FILE:3,4:5>=0.7' (columns, and a"
        " limit of another)",
        f"{_HERE}.tsv",
        prefix="tsv",
        suffixes=(".tsv",),
    ),
)
SOURCES.add(
    "jsonl",
    SourceForm(
        "'FILE.jsonl', 'FILE.jsonl.gz' ... or 'jsonl:FILE' (an object a line, with language keys), "
        "'FILE.jsonl:src,tgt:score>=0.7'",
        f"{_HERE}.jsonl",
        prefix="jsonl",
        suffixes=(".jsonl",),
    ),
)
SOURCES.add(
    "parquet",
    SourceForm(
        "'FILE.parquet' or 'parquet:data/train-*.parquet' (a column for each language),"
        " 'FILE.parquet:src,tgt:score>=0.7'",
        f"{_HERE}.parquet",
        prefix="parquet",
        suffixes=(".parquet",),
    ),
)
SOURCES.add(
    "hf",
    SourceForm(
        "'hf:FOLDER:SPLIT' (a dataset saved by Hugging Face's datasets, a column for each"
        " language), 'hf:FOLDER:SPLIT:src,tgt:score>=0.7'",
        f"{_HERE}.saved_dataset",
        prefix="hf",
    ),
)
SOURCES.add("tfds", SourceForm("'tfds:NAME:SPLIT'", f"{_HERE}.tfds", prefix="tfds"))
GROUPS.add("filters", Filters)
COMMANDS.add(
    "list_dropped",
    Command(f"{_HERE}.list_dropped", "where and why training pairs of a config are dropped"),
)
