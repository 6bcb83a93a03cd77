"""Corpus metrics of translations, each computed on both sides alike.

Three BLEUs are often mistaken for one another. `sacrebleu`: detokenised text, what others reproduce from its signature.
`tokenized_bleu`: Moses tokens and the arithmetic of multi-bleu. `paper_bleu`: as the paper's figures were scored, by
tensor2tensor's get_ende_bleu.sh. `chrf`, `chrf++` and `ter` are sacreBLEU's, on the same text as `sacrebleu`.
"""

import dataclasses
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t2t_flax.evaluation.target_language import metric_names, ter_settings, tokenizer_of

BLEUS = ("sacrebleu", "tokenized_bleu", "paper_bleu")
NAMES = metric_names("en")
"""All metrics; `target_language.metric_names` has those of a target language."""
BOOTSTRAP_SEED = 12345
"""That of sacreBLEU's own command line."""
_COMPOUND = re.compile(r"(\S)-(\S)")


@dataclasses.dataclass(frozen=True)
class Variant:
    """What happens to the text of both sides, sacreBLEU's class and settings, and all of it in one sentence."""

    prepare: Callable[[Sequence[str]], list[str]]
    settings: dict[str, Any]
    how: str
    kind: str = "BLEU"

    def metric(self) -> Any:
        """A fresh metric of `sacrebleu.metrics` for prepared text."""
        import sacrebleu.metrics

        return getattr(sacrebleu.metrics, self.kind)(**self.settings)


def variant(name: str, *, tokenized: bool, language: str, tokenizer: str = "auto") -> Variant:
    """How the metric `name` of NAMES is computed.

    tokenized: the text is Moses-tokenised and escaped already. language: the target language; its Moses rules tokenise and
    detokenise. tokenizer: of sacreBLEU, as `eval.sacrebleu_tokenizer` has it.
    """
    ours, moses = (importlib.metadata.version(package) for package in ("sacrebleu", "sacremoses"))
    rules = f"sacremoses {moses} with the rules of language {language}"
    if name in ("sacrebleu", "chrf", "chrf++", "ter"):
        plain = f"both sides detokenised and unescaped by {rules}." if tokenized else "the text as it is."
        prepare = _detokenizer(language) if tokenized else list
        if name == "sacrebleu":
            tokenizer = tokenizer_of(tokenizer, language)
            how = f"sacreBLEU {ours}, tokenizer {tokenizer}, on {plain}"
            return Variant(prepare, dict(tokenize=tokenizer), how)
        if name == "ter":
            how = f"TER of sacreBLEU {ours}: edits in percent of the reference's words, lower is better; on {plain}"
            return Variant(prepare, ter_settings(language), how, "TER")
        words = dict(word_order=2) if name == "chrf++" else {}
        return Variant(prepare, words, f"{'chrF++' if words else 'chrF'} of sacreBLEU {ours} on {plain}", "CHRF")
    tokens = list if tokenized else _tokenizer(language)
    made = "the text's own Moses tokens" if tokenized else f"Moses tokens by {rules}"
    arithmetic = f"the arithmetic of multi-bleu (sacreBLEU {ours}, tokenizer none, no smoothing), cased as the text is"
    settings = dict(tokenize="none", smooth_method="none", force=True)
    if name == "tokenized_bleu":
        return Variant(tokens, settings, f"{made} on both sides, then {arithmetic}.")
    if name != "paper_bleu":
        raise ValueError(f"{name!r} is none of {', '.join(NAMES)}")
    how = (
        f"The steps of tensor2tensor's get_ende_bleu.sh on both sides: Unicode punctuation replaced (sacremoses {moses}), "
        f"{made}, each hyphen between two non-spaces made a token; then {arithmetic}."
    )
    return Variant(lambda lines: split_compounds(tokens(replace_punctuation(lines))), settings, how)


class Statistics:
    """Sufficient statistics of a metric, float64 [sentences, n] in `counts`: the metric is a function of their sum.

    references: one or more sets, each with a line for each hypothesis. Raises ValueError for sets of another length.
    """

    def __init__(self, chosen: Variant, hypotheses: Sequence[str], references: Sequence[Sequence[str]]):
        if not references or any(len(lines) != len(hypotheses) for lines in references):
            lengths = ", ".join(str(len(lines)) for lines in references)
            raise ValueError(f"{len(hypotheses)} hypotheses, references of {lengths or 'no'} lines")
        self.metric = chosen.metric()
        prepared = [chosen.prepare(lines) for lines in references]
        self.counts = np.array(self.metric._extract_corpus_statistics(chosen.prepare(hypotheses), prepared), np.float64)

    def score(self, sums: np.ndarray) -> Any:
        """sacreBLEU's score of counts that are summed over sentences."""
        return self.metric._compute_score_from_stats(sums.tolist())

    def percent(self, sums: np.ndarray) -> float:
        """The value of `score`."""
        return float(self.score(sums).score)

    def signature(self, **more: int) -> str:
        """sacreBLEU's signature; more: `bs` and `seed` of a bootstrap."""
        signature = self.metric.get_signature()
        for key, value in more.items():
            signature.update(key, value)
        return str(signature)


def corpus_metric(
    chosen: Variant, hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, samples: int = 0
) -> dict[str, Any]:
    """A metric of a corpus in percent, with its signature and `how`; of BLEU precisions and lengths (tokens) too.

    samples: resamples of sentences for the 95 % interval, 0 = none. The interval is sacreBLEU's.
    """
    found = Statistics(chosen, hypotheses, references)
    score = found.score(found.counts.sum(0))
    out = {"score": round(score.score, 4), "signature": found.signature()}
    if chosen.kind == "BLEU":
        out |= {
            "precisions": [round(p, 4) for p in score.precisions],
            "brevity_penalty": round(score.bp, 6),
            "hypothesis_length": score.sys_len,
            "reference_length": score.ref_len,
        }
    out["how"] = chosen.how
    if samples:
        out["confidence"] = _confidence(found, samples)
    return out


def draw_sentences(sentences: int, count: int, seed: int = BOOTSTRAP_SEED) -> np.ndarray:
    """int64 [count, sentences]: sentences drawn with replacement, the same ones that sacreBLEU draws."""
    return np.random.default_rng(seed).choice(sentences, size=(count, sentences))


def _confidence(found: Statistics, samples: int) -> dict[str, Any]:
    from sacrebleu.significance import estimate_ci

    draws = draw_sentences(len(found.counts), samples)
    mean, half_width = estimate_ci(np.array([found.percent(found.counts[i].sum(0)) for i in draws]))
    return {
        "level": 0.95,
        "samples": samples,
        "mean": round(float(mean), 4),
        "half_width": round(float(half_width), 4),
    }


def replace_punctuation(lines: Sequence[str]) -> list[str]:
    """Full-width and curly punctuation becomes ASCII, as Moses' replace-unicode-punctuation does."""
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
