"""Three BLEUs that are often mistaken for one another, each computed on both sides alike.

`sacrebleu`: detokenised text, what others reproduce from its signature. `tokenized_bleu`: Moses tokens and the arithmetic
of multi-bleu. `paper_bleu`: as the paper's figures were scored, by tensor2tensor's get_ende_bleu.sh.
"""

import dataclasses
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

VARIANTS = {"sacrebleu": "sacreBLEU", "tokenized_bleu": "tokenized BLEU", "paper_bleu": "paper BLEU"}
_COMPOUND = re.compile(r"(\S)-(\S)")


@dataclasses.dataclass(frozen=True)
class Variant:
    """What happens to the text of both sides, sacreBLEU's settings, and both in one sentence."""

    prepare: Callable[[Sequence[str]], list[str]]
    settings: dict[str, Any]
    how: str

    def metric(self, **more: Any) -> Any:
        """A fresh `sacrebleu.metrics.BLEU` for prepared text."""
        from sacrebleu.metrics import BLEU

        return BLEU(**self.settings, **more)


def variant(name: str, *, tokenized: bool, language: str) -> Variant:
    """How the BLEU `name` of VARIANTS is computed.

    tokenized: the text is Moses-tokenised and escaped already. language: whose Moses rules tokenise and detokenise.
    """
    ours, moses = (importlib.metadata.version(package) for package in ("sacrebleu", "sacremoses"))
    rules = f"sacremoses {moses} with the rules of language {language}"
    if name == "sacrebleu":
        how = f"sacreBLEU {ours}, tokenizer 13a, on "
        if not tokenized:
            return Variant(list, {}, how + "the text as it is.")
        return Variant(_detokenizer(language), {}, how + f"both sides detokenised and unescaped by {rules}.")
    tokens = list if tokenized else _tokenizer(language)
    made = "the text's own Moses tokens" if tokenized else f"Moses tokens by {rules}"
    arithmetic = f"the arithmetic of multi-bleu (sacreBLEU {ours}, tokenizer none, no smoothing), cased as the text is"
    settings = dict(tokenize="none", smooth_method="none", force=True)
    if name == "tokenized_bleu":
        return Variant(tokens, settings, f"{made} on both sides, then {arithmetic}.")
    if name != "paper_bleu":
        raise ValueError(f"{name!r} is none of {', '.join(VARIANTS)}")
    how = (
        f"The steps of tensor2tensor's get_ende_bleu.sh on both sides: Unicode punctuation replaced (sacremoses {moses}), "
        f"{made}, each hyphen between two non-spaces made a token; then {arithmetic}."
    )
    return Variant(lambda lines: split_compounds(tokens(replace_punctuation(lines))), settings, how)


def bleu(chosen: Variant, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Corpus BLEU in percent with its precisions, lengths (tokens), signature and `how`."""
    metric = chosen.metric()
    score = metric.corpus_score(chosen.prepare(hypotheses), [chosen.prepare(references)])
    return {
        "score": round(score.score, 4),
        "signature": str(metric.get_signature()),
        "precisions": [round(p, 4) for p in score.precisions],
        "brevity_penalty": round(score.bp, 6),
        "hypothesis_length": score.sys_len,
        "reference_length": score.ref_len,
        "how": chosen.how,
    }


def statistics(chosen: Variant, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """int64 [sentences, 10] of prepared text: matches and n-grams of the orders 1 to 4, both lengths. BLEU is a function
    of their sum (`of_counts`).
    """
    metric = chosen.metric(effective_order=True)  # touches no count, only the warning about single sentences
    scores = (metric.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True))
    return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores], np.int64)


def of_counts(chosen: Variant, sums: np.ndarray) -> float:
    """BLEU in percent of `statistics` summed over sentences."""
    sums = sums.tolist()
    smooth = chosen.settings.get("smooth_method", "exp")
    return chosen.metric().compute_bleu(sums[:4], sums[4:8], sums[8], sums[9], smooth_method=smooth).score


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
