"""Translation: sentence pairs, SentencePiece or BPE pieces on both sides, BLEU."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from t2t_flax.data.prepare import tokenizer_settings, train_tokenizers
from t2t_flax.data.sources import open_source
from t2t_flax.data.task import Counts, Task
from t2t_flax.evaluation import bleu
from t2t_flax.evaluation.scores import corpus_scores

_STEPS = {
    "tokenized_bleu": "Moses tokens, multi-bleu",
    "paper_bleu": "Moses tokens, hyphens split, multi-bleu",
}


class Translation(Task):
    score = "bleu"
    names = (*bleu.VARIANTS, "chrf", "exact_match")
    spoken = bleu.VARIANTS

    def read(self, spec, *, seed, key):
        data = self.data
        languages = dict(source_language=data.source_language, target_language=data.target_language)
        return open_source(spec, root=data.root, seed=seed, key=key, **languages)

    def train_tokenizers(self, source):
        return train_tokenizers(source, joint=self.data.joint_vocabulary, **tokenizer_settings(self.data))

    def scores(self, sources, outputs, targets, *, samples, brief=False):
        text = dict(tokenized=self.data.tokenized, language=self.data.target_language)
        hypotheses, references = ([self.answer("", line) for line in side] for side in (outputs, targets))
        return corpus_scores(hypotheses, references, bootstrap_samples=samples, all_variants=not brief, **text)

    @staticmethod
    def summary(scores: dict[str, Any]) -> list[str]:
        lines = []
        for name, spoken in bleu.VARIANTS.items():
            value = f"{scores[name]['score']:.2f}"
            if "confidence" in scores[name]:
                value += f" ± {scores[name]['confidence']['half_width']:.2f}"
            lines.append(f"  {spoken:14} {value:14} {_STEPS.get(name, scores[name]['signature'])}")
        lines.append(
            f"  chrF {scores['chrf']['score']:.2f}   exactly right {scores['exact_match']['score']:.1f} %   "
            f"perplexity {scores['perplexity']:.3f}"
        )
        return lines

    def counts(self, score: str, answers: Sequence[str], references: Sequence[str]) -> Counts:
        chosen = bleu.variant(score, tokenized=self.data.tokenized, language=self.data.target_language)
        statistics = bleu.statistics(chosen, chosen.prepare(answers), chosen.prepare(references))
        return statistics, lambda sums: bleu.of_counts(chosen, np.asarray(sums))


TASK = Translation
