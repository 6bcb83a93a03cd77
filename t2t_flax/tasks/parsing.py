"""English constituency parsing (6.3): words in, their linearised tree out, labelled F1."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from t2t_flax.data.task import Counts, Task
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.data.tokenizers.sentencepiece import train_sentencepiece
from t2t_flax.data.tokenizers.word_level import SymbolTokenizer
from t2t_flax.errors import UserError
from t2t_flax.evaluation.metrics import label
from t2t_flax.tasks.brackets import EXACT, HOW, bracket_counts, f1
from t2t_flax.tasks.tree_source import open_trees
from t2t_flax.tasks.trees import Node, bracketed, escaped, from_linear, leaves, linear, read_trees, unescaped

_SEED = 12345


class Parsing(Task):
    score = "f1"
    names = ("f1", "precision", "recall", "evalb_f1", "exact_match", "tagging_accuracy", "well_formed")
    spoken = {"f1": label("f1")}
    prefixes = False

    def read(self, spec, *, seed, key):
        return open_trees(spec, root=self.data.root, key=key)

    def train_tokenizers(self, source):
        words = train_sentencepiece((sentence for sentence, _ in source.pairs()), self.data)
        return TokenizerPair(words, SymbolTokenizer.of(target for _, target in source.pairs()))

    def source(self, text):
        return escaped(unescaped(text))

    def target(self, source, text):
        found = [tree for _, tree in read_trees([text], "the target")]
        if len(found) != 1:
            raise UserError(f"the target holds {len(found)} trees, expected one: (TOP (S ...)).")
        tree = found[0]
        words = [leaf.word for leaf in leaves(tree)]
        if words != self.source(source).split():
            raise UserError(f"the target is a tree over other words than the source: {' '.join(words)}")
        return linear(tree)

    def answer(self, source, output):
        return bracketed(from_linear(output, source.split())[0]) if source.strip() else ""

    def scores(self, sources, outputs, references, *, samples, brief=False):
        (targets,) = references
        pairs = list(zip(sources, outputs, targets, strict=True))
        made = [from_linear(output, source.split()) for source, output, _ in pairs]
        gold = [from_linear(target, source.split())[0] for source, _, target in pairs]
        counts = np.array([bracket_counts(tree, reference) for (tree, _), reference in zip(made, gold, strict=True)])
        matched, in_gold, found, tags, words, exact, refused = (int(n) for n in counts.sum(0))
        percent = lambda part, of: round(100.0 * part / of, 4) if of else 0.0  # noqa: E731
        taken = counts[counts[:, -1] == 0]
        scores: dict[str, Any] = {
            "f1": {"score": round(f1(counts.sum(0)), 4), "how": HOW},
            "precision": {"score": percent(matched, found)},
            "recall": {"score": percent(matched, in_gold)},
            "evalb_f1": {
                "score": round(f1(taken.sum(0)), 4) if len(taken) else None,
                "sentences": len(taken),
                "left_out": refused,
            },
            "exact_match": {"score": percent(exact, len(pairs)), "sentences": exact, "how": EXACT},
            "tagging_accuracy": {"score": percent(tags, words)},
            "well_formed": {"score": percent(sum(right for _, right in made), len(pairs))},
        }
        if samples:
            rng = np.random.default_rng(_SEED)
            drawn = rng.multinomial(len(pairs), np.full(len(pairs), 1 / len(pairs)), size=samples) @ counts
            low, high = np.percentile([f1(sums) for sums in drawn], (2.5, 97.5))
            interval = {"level": 0.95, "samples": samples, "low": round(float(low), 4), "high": round(float(high), 4)}
            scores["f1"]["confidence"] = interval
        return scores

    @staticmethod
    def summary(scores):
        taken = scores["evalb_f1"]
        as_evalb = "none taken" if taken["score"] is None else f"{taken['score']:.2f}"
        interval = scores["f1"].get("confidence")
        told = f" [{interval['low']:.2f}, {interval['high']:.2f}]" if interval else ""
        return [
            f"  F1 {scores['f1']['score']:.2f}{told}   precision {scores['precision']['score']:.2f}   recall "
            f"{scores['recall']['score']:.2f}   (EVALB's rules, COLLINS.prm)   as EVALB: {as_evalb}, "
            f"{taken['left_out']} left out",
            f"  exactly right {scores['exact_match']['score']:.1f} %   tags right {scores['tagging_accuracy']['score']:.2f} %   "
            f"well-formed outputs {scores['well_formed']['score']:.2f} %   perplexity {scores['perplexity']:.3f}",
        ]

    def counts(self, score: str, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        (trees,) = references
        pairs = zip(map(_tree, answers), map(_tree, trees), strict=True)
        return Counts(np.array([bracket_counts(answer, reference) for answer, reference in pairs]), f1, HOW)


def _tree(text: str) -> Node:
    if not text.strip():
        return Node("TOP", ())
    ((_, tree),) = read_trees([text], "tree")
    return tree


TASK = Parsing
