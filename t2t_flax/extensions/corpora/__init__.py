"""Corpora: tab-separated, JSON-lines and Parquet files, saved datasets of Hugging Face, mtdata's index; filters of pairs."""

from t2t_flax.registry import DATA_HOOKS, SourceForm, add_group, add_source

_HERE = "t2t_flax.extensions.corpora"
add_source(
    "tsv",
    SourceForm("'FILE.tsv', 'FILE.tsv.gz' ... (source TAB target)", f"{_HERE}.tsv", suffixes=(".tsv",)),
)
add_source(
    "jsonl",
    SourceForm(
        "'FILE.jsonl', 'FILE.jsonl.gz' ... or 'jsonl:FILE' (an object a line, with language keys)",
        f"{_HERE}.jsonl",
        prefix="jsonl",
        suffixes=(".jsonl",),
    ),
)
add_source(
    "parquet",
    SourceForm(
        "'FILE.parquet' or 'parquet:data/train-*.parquet' (a column for each language)",
        f"{_HERE}.parquet",
        prefix="parquet",
        suffixes=(".parquet",),
    ),
)
add_source(
    "hf",
    SourceForm(
        "'hf:FOLDER:SPLIT' (a dataset saved by Hugging Face's datasets, a column for each language)",
        f"{_HERE}.saved_dataset",
        prefix="hf",
    ),
)
add_source(
    "mtdata", SourceForm("'mtdata:IDENTIFIER' (a corpus of mtdata's index)", f"{_HERE}.mtdata_corpus", prefix="mtdata")
)
add_group("filters", f"{_HERE}.keys", "Filters")
DATA_HOOKS.add(f"{_HERE}.filters", "filters.duplicates", "filters.length_ratio", "filters.language")
