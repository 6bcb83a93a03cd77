"""The scores of records and logs: how each is written for people, and whether a lower value is better."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Metric:
    """label: as tables and summaries write it."""

    label: str
    lower_is_better: bool = False


METRICS = {
    "sacrebleu": Metric("sacreBLEU"),
    "tokenized_bleu": Metric("tokenized BLEU"),
    "paper_bleu": Metric("paper BLEU"),
    "chrf": Metric("chrF"),
    "chrf++": Metric("chrF++"),
    "ter": Metric("TER", lower_is_better=True),
    "bleu": Metric("BLEU"),
    "f1": Metric("F1"),
    "precision": Metric("precision"),
    "recall": Metric("recall"),
    "evalb_f1": Metric("F1 as EVALB"),
    "exact_match": Metric("exactly right"),
    "tagging_accuracy": Metric("tags right"),
    "well_formed": Metric("well-formed"),
    "nll": Metric("nll", lower_is_better=True),
    "loss": Metric("loss", lower_is_better=True),
    "perplexity": Metric("perplexity", lower_is_better=True),
    "ppl": Metric("perplexity", lower_is_better=True),
}

NO_SCORE = (
    "decode.batch_size", "eval.every_steps", "eval.every_epochs", "eval.decode_every_steps", "eval.decode_sentences",
    "eval.metric", "eval.patience", "eval.samples",
)  # fmt: skip
"""Keys of `decode` and `eval` that change no score of a record."""


def label(name: str) -> str:
    """A score's name for people; a score of a task of your own that is not in the table is called what it is."""
    return METRICS[name].label if name in METRICS else name


def lower_is_better(name: str) -> bool:
    """The direction of a score of a record, of a named test set (`newstest2014:ter`) or of the validation set (`valid_nll`);
    higher is better where the table does not have it.
    """
    name = name.rpartition(":")[2].removeprefix("valid_")
    return name in METRICS and METRICS[name].lower_is_better
