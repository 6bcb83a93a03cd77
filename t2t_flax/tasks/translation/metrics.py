"""Corpus metrics of translations; both sides of a comparison go through the same steps.

Three BLEUs are often mistaken for one another. `sacrebleu`: detokenized text, reproducible by anyone
from its signature. `tokenized_bleu`: Moses tokens and the arithmetic of multi-bleu. `paper_bleu`: as
the paper's figures were computed, by tensor2tensor's get_ende_bleu.sh. `chrf`, `chrf++` and `ter` are
sacreBLEU's, on the same text as `sacrebleu`.
"""

import dataclasses
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t2t_flax.config import Config
from t2t_flax.tasks.metrics import Metric, Predictions, SentenceStatistics
from t2t_flax.tasks.translation.target_language import (
    has_moses_rules,
    has_word_boundaries,
    ter_settings,
    tokenizer_of,
)

_COMPOUND = re.compile(r"(\S)-(\S)")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a metric is computed: what happens to the text of both sides, sacreBLEU's class (`kind`)
    and its settings, and all of it in one sentence (`method`).
    """

    prepare: Callable[[Sequence[str]], list[str]]
    settings: dict[str, Any]
    method: str
    kind: str = "BLEU"

    def metric(self) -> Any:
        """A new metric of `sacrebleu.metrics` for prepared text."""
        import sacrebleu.metrics

        return getattr(sacrebleu.metrics, self.kind)(**self.settings)


def recipe(name: str, config: Config) -> Recipe:
    """How the metric `name` of `METRICS` is computed.

    The target language (data.target_language) selects the Moses rules, sacreBLEU's tokenizer (with
    eval.sacrebleu_tokenizer = auto) and the variant of TER. Text that is Moses-tokenized and escaped
    already (data.pretokenized) is detokenized for all but the BLEUs of Moses tokens.
    """
    language, pretokenized = config.data.target_language, config.data.pretokenized
    ours, moses = (importlib.metadata.version(package) for package in ("sacrebleu", "sacremoses"))
    rules = f"sacremoses {moses} with the rules of language {language}"
    if name in ("sacrebleu", "chrf", "chrf++", "ter"):
        text = f"both sides detokenized and unescaped by {rules}." if pretokenized else "the text as it is."
        prepare = _detokenizer(language) if pretokenized else list
        if name == "sacrebleu":
            tokenizer = tokenizer_of(config.eval.sacrebleu_tokenizer, language)
            method = f"sacreBLEU {ours}, tokenizer {tokenizer}, on {text}"
            return Recipe(prepare, dict(tokenize=tokenizer), method)
        if name == "ter":
            method = f"TER of sacreBLEU {ours}: edits in percent of the reference's words, lower is better; on {text}"
            return Recipe(prepare, ter_settings(language), method, "TER")
        settings = dict(word_order=2) if name == "chrf++" else {}
        method = f"{'chrF++' if settings else 'chrF'} of sacreBLEU {ours} on {text}"
        return Recipe(prepare, settings, method, "CHRF")
    tokenize = list if pretokenized else _tokenizer(language)
    tokens = "the text's own Moses tokens" if pretokenized else f"Moses tokens by {rules}"
    arithmetic = f"the arithmetic of multi-bleu (sacreBLEU {ours}, tokenizer none, no smoothing), cased as the text is"
    settings = dict(tokenize="none", smooth_method="none", force=True)
    if name == "tokenized_bleu":
        return Recipe(tokenize, settings, f"{tokens} on both sides, then {arithmetic}.")
    if name != "paper_bleu":
        raise ValueError(f"{name!r} is none of {', '.join(metric.name for metric in METRICS)}")
    method = (
        f"The steps of tensor2tensor's get_ende_bleu.sh on both sides: Unicode punctuation replaced (sacremoses {moses}), "
        f"{tokens}, each hyphen between two non-spaces made a token; then {arithmetic}."
    )
    return Recipe(lambda lines: split_compounds(tokenize(replace_punctuation(lines))), settings, method)


def sacrebleu_statistics(steps: Recipe, predictions: Predictions) -> SentenceStatistics:
    """Sufficient statistics of a sacreBLEU metric for each sentence.

    sacreBLEU computes every corpus score from them, but has no public function that returns them;
    the tests hold their scores against its public ones.
    """
    metric = steps.metric()
    references = [steps.prepare(lines) for lines in predictions.references]
    statistics = metric._extract_corpus_statistics(steps.prepare(predictions.hypotheses), references)
    values = np.array(statistics, np.float64)

    def score(sums: np.ndarray) -> float:
        return float(metric._compute_score_from_stats(sums.tolist()).score)

    def signature(**bootstrap: int) -> str:
        text = metric.get_signature()
        for key, value in bootstrap.items():
            text.update(key, value)
        return str(text)

    details = {}
    if steps.kind == "BLEU":
        bleu = metric._compute_score_from_stats(values.sum(0).tolist())
        details = {
            "precisions": [round(p, 4) for p in bleu.precisions],
            "brevity_penalty": round(bleu.bp, 6),
            "hypothesis_length": bleu.sys_len,
            "reference_length": bleu.ref_len,
        }
    return SentenceStatistics(values, score, steps.method, signature, details)


def _statistics(name: str) -> Callable[[Predictions, Config], SentenceStatistics]:
    return lambda predictions, config: sacrebleu_statistics(recipe(name, config), predictions)


def exact_match(predictions: Predictions, config: Config) -> dict[str, Any]:
    """The share of outputs that equal one of their references."""
    hypotheses, references = predictions.hypotheses, predictions.references
    count = sum(h in rs for h, *rs in zip(hypotheses, *references, strict=True))
    return {"score": round(100.0 * count / len(hypotheses), 4), "sentences": count}


METRICS = [
    Metric(
        "sacrebleu",
        "sacreBLEU",
        statistics=_statistics("sacrebleu"),
        log_name="bleu",
        confidence_interval=True,
    ),
    Metric(
        "tokenized_bleu",
        "tokenized BLEU",
        statistics=_statistics("tokenized_bleu"),
        applies=lambda config: has_moses_rules(config.data.target_language),
        note="Moses tokens, multi-bleu",
    ),
    Metric(
        "paper_bleu",
        "paper BLEU",
        statistics=_statistics("paper_bleu"),
        applies=lambda config: has_moses_rules(config.data.target_language),
        note="Moses tokens, hyphens split, multi-bleu",
    ),
    Metric("chrf", "chrF", statistics=_statistics("chrf"), confidence_interval=True),
    Metric("chrf++", "chrF++", statistics=_statistics("chrf++"), confidence_interval=True),
    Metric(
        "ter",
        "TER",
        statistics=_statistics("ter"),
        higher_is_better=False,
        confidence_interval=True,
        applies=lambda config: has_word_boundaries(config.data.target_language),
    ),
    Metric("exact_match", "exact match", exact_match, unit="%"),
]
"""A new metric is a row here; records, summaries, training, comparisons and sweeps read this table."""


def replace_punctuation(lines: Sequence[str]) -> list[str]:
    """Full-width and curly punctuation becomes ASCII, as in Moses' replace-unicode-punctuation."""
    from sacremoses import MosesPunctNormalizer

    normalizer = MosesPunctNormalizer()
    return [normalizer.replace_unicode_punct(line) for line in lines]


def split_compounds(lines: Sequence[str]) -> list[str]:
    """`rich-text` becomes `rich ##AT##-##AT## text`: the compound splitting of tensor2tensor."""
    return [_COMPOUND.sub(r"\1 ##AT##-##AT## \2", line) for line in lines]


def _tokenizer(language: str) -> Callable[[Sequence[str]], list[str]]:
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(language)
    return lambda lines: [moses.tokenize(line, return_str=True) for line in lines]


def _detokenizer(language: str) -> Callable[[Sequence[str]], list[str]]:
    from sacremoses import MosesDetokenizer

    moses = MosesDetokenizer(language)
    return lambda lines: [moses.detokenize(line.split()) for line in lines]
