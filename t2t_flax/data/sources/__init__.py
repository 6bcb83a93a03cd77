"""Data sources: text files, a TSV, JSON-lines or Parquet file, a dataset of Hugging Face, TFDS or
mtdata, or the built-in corpus.

A new form is a file in this folder and a row in `SOURCES` (docs/extending.md).
"""

from t2t_flax.data.sources import jsonl, mtdata_corpus, parquet, saved_dataset, text, tfds, toy
from t2t_flax.data.sources.base import Context, Form, Source
from t2t_flax.errors import UserError

SOURCES: dict[str, Form] = {
    "toy": toy.FORM,
    "tfds": tfds.FORM,
    "jsonl": jsonl.FORM,
    "parquet": parquet.FORM,
    "hf": saved_dataset.FORM,
    "mtdata": mtdata_corpus.FORM,
    "tsv": text.TSV_FORM,
    "text": text.TEXT_FORM,
}
"""Name -> form; a spec is opened by the first form that matches it."""


def open_source(
    spec: str,
    *,
    root: str = "",
    source_language: str,
    target_language: str,
    key: str = "",
) -> Source:
    """The source that `spec` names, in one of the forms of `SOURCES`.

    root: folder of relative paths; for TFDS its data_dir. key: the config key that
    holds `spec`, for error messages. Raises UserError for an unknown form and for a source that does not exist.
    """
    label = f"{key} = {spec!r}" if key else repr(spec)
    for form in SOURCES.values():
        if form.matches(spec):
            return form.open(spec, Context(root, (source_language, target_language), label))
    forms = ", ".join(form.shown for form in SOURCES.values())
    raise UserError(f"{label} has no known form. Known forms: {forms}")


def files_of(spec: str) -> list[str]:
    """The files that `spec` names; without a known form, its comma-separated parts."""
    form = next((form for form in SOURCES.values() if form.matches(spec)), None)
    return form.files(spec) if form else spec.split(",")
