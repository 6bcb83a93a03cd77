"""Scores of a test set, each with the signature or the sentence that lets others reproduce it."""

from collections.abc import Sequence
from typing import Any

from t2t_flax.config import Config
from t2t_flax.data.task import task_of
from t2t_flax.evaluation.bleu import BLEUS, corpus_metric, variant
from t2t_flax.evaluation.target_language import metric_names


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    bootstrap_samples: int = 0,
    tokenized: bool = False,
    language: str = "de",
    tokenizer: str = "auto",
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """The metrics of a target language (`names`: only these) and the share of exact matches; in percent.

    Every sentence counts, in the order of the file. references: one or more sets, each with a line for each hypothesis; an
    exact match is one with any of them. tokenized: the text is Moses-tokenised and escaped already; all but the BLEUs of
    Moses tokens then see it detokenised. language: the target's. tokenizer: of sacreBLEU (`eval.sacrebleu_tokenizer`).
    bootstrap_samples: of the 95 % intervals, which BLEUs of Moses tokens have none of; 0 = none.
    """
    exact = sum(h in rs for h, *rs in zip(hypotheses, *references, strict=True))
    out = {}
    for name in names or metric_names(language):
        chosen = variant(name, tokenized=tokenized, language=language, tokenizer=tokenizer)
        samples = 0 if name in BLEUS[1:] else bootstrap_samples
        out[name] = corpus_metric(chosen, hypotheses, references, samples=samples)
    out["exact_match"] = {"score": round(100.0 * exact / len(hypotheses), 4), "sentences": exact}
    return out


def check_metrics(config: Config) -> None:
    """Raises UserError where a package or a model is missing that the scores of a run with this config need."""
    task_of(config).check()
