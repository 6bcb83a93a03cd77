"""Corpora: tab-separated, JSON-lines and Parquet files, saved datasets of Hugging Face, mtdata's index; filters of pairs."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import key
from t2t_flax.errors import UserError
from t2t_flax.registry import COMMANDS, DATA_HOOKS, GROUPS, SOURCES, Command, SourceForm


@dataclass(frozen=True)
class Filters:
    duplicates: bool = key(False, "training pairs that occurred before, in any source, are dropped")
    length_ratio: float = key(
        0.0, "training pairs are dropped if one side has more than this many times the tokens of the other; 0 = none",
        low=0.0,
    )  # fmt: skip
    language: float = key(
        0.0, "training pairs are dropped if a side is identified as another language, at least this probable against the "
        "side's own (0.95 drops few right pairs, even short ones); 0 = none. Needs the extra langid", low=0.0, high=1.0,
    )  # fmt: skip

    def check(self, config: Config) -> None:
        """Raises UserError for a limit that drops right pairs, and for languages of a task without."""
        if 0 < self.length_ratio < 1:
            raise UserError(
                f"config.filters.length_ratio = {self.length_ratio} would drop every pair: the longer side has at least as "
                "many tokens as the other. Use 1 or more, or 0 for no limit."
            )
        if 0 < self.language < 0.5:
            raise UserError(
                f"config.filters.language = {self.language} is less than 0.5, where another language is as probable as the "
                "side's own. Use 0.5 or more (0.95 is safe for short text), or 0 for no filter."
            )
        if self.language and config.data.task != "translation":
            raise UserError(
                f"config.filters.language = {self.language} needs data.task = translation, not {config.data.task}."
            )


_HERE = "t2t_flax.extensions.corpora"
SOURCES.add(
    "tsv",
    SourceForm("'FILE.tsv', 'FILE.tsv.gz' ... (source TAB target)", f"{_HERE}.tsv", suffixes=(".tsv",)),
)
SOURCES.add(
    "jsonl",
    SourceForm(
        "'FILE.jsonl', 'FILE.jsonl.gz' ... or 'jsonl:FILE' (an object a line, with language keys)",
        f"{_HERE}.jsonl",
        prefix="jsonl",
        suffixes=(".jsonl",),
    ),
)
SOURCES.add(
    "parquet",
    SourceForm(
        "'FILE.parquet' or 'parquet:data/train-*.parquet' (a column for each language)",
        f"{_HERE}.parquet",
        prefix="parquet",
        suffixes=(".parquet",),
    ),
)
SOURCES.add(
    "hf",
    SourceForm(
        "'hf:FOLDER:SPLIT' (a dataset saved by Hugging Face's datasets, a column for each language)",
        f"{_HERE}.saved_dataset",
        prefix="hf",
    ),
)
SOURCES.add(
    "mtdata", SourceForm("'mtdata:IDENTIFIER' (a corpus of mtdata's index)", f"{_HERE}.mtdata_corpus", prefix="mtdata")
)
GROUPS.add("filters", Filters)
COMMANDS.add("list_dropped", Command(f"{_HERE}.list_dropped", "where and why training pairs of a config are dropped"))
DATA_HOOKS.add(f"{_HERE}.filters", "filters.duplicates", "filters.length_ratio", "filters.language")
