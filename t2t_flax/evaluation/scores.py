"""Scores of a test set, each with the signature or the sentence that lets others reproduce it."""

from collections.abc import Sequence
from typing import Any

from t2t_flax.evaluation.bleu import VARIANTS, bleu, variant


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    bootstrap_samples: int = 0,
    tokenized: bool = False,
    language: str = "de",
    all_variants: bool = False,
) -> dict[str, Any]:
    """sacreBLEU (with a 95 % bootstrap interval if asked for), chrF and the share of exact matches; in percent.

    Every sentence counts, in the order of the file. tokenized: the text is Moses-tokenised and escaped already;
    sacreBLEU and chrF then see it detokenised. language: whose Moses rules are used. all_variants: the other BLEUs of
    `bleu.VARIANTS` too.
    """
    from sacrebleu.metrics import CHRF

    exact = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    out = {
        name: bleu(variant(name, tokenized=tokenized, language=language), hypotheses, references)
        for name in VARIANTS
        if all_variants or name == "sacrebleu"
    }
    plain = variant("sacrebleu", tokenized=tokenized, language=language)
    texts, originals = plain.prepare(hypotheses), plain.prepare(references)
    if bootstrap_samples:
        result = plain.metric(references=[originals]).corpus_score(texts, None, n_bootstrap=bootstrap_samples)
        out["sacrebleu"]["confidence"] = {
            "level": 0.95,
            "samples": bootstrap_samples,
            "mean": round(float(result._mean), 4),
            "half_width": round(float(result._ci), 4),
        }
    chrf = CHRF()
    out["chrf"] = {
        "score": round(chrf.corpus_score(texts, [originals]).score, 4),
        "signature": str(chrf.get_signature()),
    }
    out["exact_match"] = {"score": round(100.0 * exact / len(references), 4), "sentences": exact}
    return out
