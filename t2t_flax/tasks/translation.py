"""Translation: sentence pairs, SentencePiece or BPE pieces on both sides, BLEU."""

from collections.abc import Sequence
from typing import Any

from t2t_flax.config import Data, Eval
from t2t_flax.data.sources import open_source
from t2t_flax.data.task import Counts, Task
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.evaluation.bleu import NAMES, Statistics, Variant, variant
from t2t_flax.evaluation.metrics import label, lower_is_better
from t2t_flax.evaluation.scores import corpus_scores
from t2t_flax.evaluation.target_language import check_tokenizer, metric_names

_STEPS = {
    "tokenized_bleu": "Moses tokens, multi-bleu",
    "paper_bleu": "Moses tokens, hyphens split, multi-bleu",
}


class Translation(Task):
    """The metrics are those that make sense for the target language."""

    score = "bleu"
    names = (*NAMES, "exact_match")
    spoken = {name: label(name) for name in NAMES}

    def __init__(self, data: Data, scoring: Eval | None = None):
        super().__init__(data, scoring)
        metrics = metric_names(data.target_language)
        self.names = (*metrics, "exact_match")
        self.spoken = {name: label(name) for name in metrics}
        self._text = dict(
            tokenized=data.pretokenized, language=data.target_language, tokenizer=self.scoring.sacrebleu_tokenizer
        )

    def read(self, spec, *, seed, key):
        data = self.data
        languages = dict(source_language=data.source_language, target_language=data.target_language)
        return open_source(spec, root=data.root, seed=seed, key=key, **languages)

    def train_tokenizers(self, source):
        return train_tokenizers(source, self.data)

    def check(self):
        check_tokenizer(self.scoring.sacrebleu_tokenizer, self.data.target_language)

    def scores(self, sources, outputs, references, *, samples, brief=False):
        hypotheses, *references = ([self.answer("", line) for line in side] for side in (outputs, *references))
        names = ("sacrebleu",) if brief else ()
        return corpus_scores(hypotheses, references, bootstrap_samples=samples, names=names, **self._text)

    @staticmethod
    def summary(scores: dict[str, Any]) -> list[str]:
        lines = []
        for name in (name for name in NAMES if name in scores):
            value = f"{scores[name]['score']:.2f}"
            if "confidence" in scores[name]:
                value += f" ± {scores[name]['confidence']['half_width']:.2f}"
            told = _STEPS.get(name, scores[name]["signature"]) + (
                "  (lower is better)" if lower_is_better(name) else ""
            )
            lines.append(f"  {label(name):14} {value:14} {told}")
        exact, perplexity = scores["exact_match"]["score"], scores["perplexity"]
        lines.append(f"  exactly right {exact:.1f} %   perplexity {perplexity:.3f}")
        return lines

    def counts(self, score: str, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        chosen: Variant = variant(score, **self._text)
        found = Statistics(chosen, answers, references)
        return Counts(found.counts, found.percent, chosen.how, found.signature)


TASK = Translation
