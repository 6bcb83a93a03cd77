"""Scores of detokenised text, each with the signature that lets others reproduce it."""

from collections.abc import Sequence
from typing import Any


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], *, bootstrap_samples: int = 0
) -> dict[str, Any]:
    """sacreBLEU (with a 95 % bootstrap interval if asked for), chrF and the share of exact matches.

    Every sentence counts, in the order of the file. The scores are in percent.
    """
    from sacrebleu.metrics import BLEU, CHRF

    bleu, chrf = BLEU(), CHRF()
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)])
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)])
    exact = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    out = {
        "sacrebleu": {
            "score": round(bleu_score.score, 4),
            "signature": str(bleu.get_signature()),
            "precisions": [round(p, 4) for p in bleu_score.precisions],
            "brevity_penalty": round(bleu_score.bp, 6),
            "hypothesis_length": bleu_score.sys_len,
            "reference_length": bleu_score.ref_len,
        },
        "chrf": {"score": round(chrf_score.score, 4), "signature": str(chrf.get_signature())},
        "exact_match": {"score": round(100.0 * exact / len(references), 4), "sentences": exact},
    }
    if bootstrap_samples:
        out["sacrebleu"]["confidence"] = _bootstrap(bleu_score.score, hypotheses, references, bootstrap_samples)
    return out


def _bootstrap(score: float, hypotheses: Sequence[str], references: Sequence[str], samples: int) -> dict[str, Any]:
    from sacrebleu.metrics import BLEU

    result = BLEU(references=[list(references)]).corpus_score(list(hypotheses), None, n_bootstrap=samples)
    mean, half = float(result._mean), float(result._ci)
    return {"level": 0.95, "samples": samples, "mean": round(mean, 4), "half_width": round(half, 4)}
