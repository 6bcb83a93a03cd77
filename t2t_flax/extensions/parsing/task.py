"""English constituency parsing (6.3): words to linearized trees.

The score is labelled F1.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from t2t_flax.config import Config
from t2t_flax.data.hooks import control_symbols
from t2t_flax.data.tokenizers import SentencePieceTokenizer, TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.extensions.parsing.evalb import COUNTS, EXACT_MATCH, METHOD, bracket_counts, f1
from t2t_flax.extensions.parsing.numbered import NumberedSymbols, NumberedWords
from t2t_flax.extensions.parsing.source import open_trees
from t2t_flax.extensions.parsing.trees import (
    Node,
    bracketed,
    escaped,
    from_linear,
    leaves,
    linear,
    read_trees,
    unescaped,
)
from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer
from t2t_flax.tasks import Metric, Predictions, SentenceStatistics, Task

WORDS = (1, 11, 21, 31, 46, 10**6)
"""Bounds, in words, of the length groups whose F1 records give."""


@functools.lru_cache(maxsize=4)  # all metrics of an evaluation share the counts
def _counts(predictions: Predictions) -> np.ndarray:
    """Return counts, int64 [sentences, len(COUNTS)]."""
    (references,) = predictions.references
    pairs = zip(map(_tree, predictions.hypotheses), map(_tree, references), strict=True)
    return np.array([bracket_counts(tree, reference) for tree, reference in pairs])


def _tree(text: str) -> Node:
    if not text.strip():
        return Node("TOP", ())
    ((_, tree),) = read_trees([text], "tree")
    return tree


def _sums(predictions: Predictions) -> dict[str, int]:
    return dict(zip(COUNTS, _counts(predictions).sum(0).tolist(), strict=True))


def _percent(part: int, whole: int) -> dict[str, float]:
    return {"score": round(100.0 * part / whole, 4) if whole else 0.0}


def labelled_f1(predictions: Predictions, config: Config) -> SentenceStatistics:
    """Return F1 over the whole set, and over the sentences of each length."""
    counts = _counts(predictions)
    words = np.array([len(leaves(_tree(line))) for line in predictions.references[0]])
    by_words = []
    for first, last in itertools.pairwise(WORDS):
        if len(chosen := counts[(words >= first) & (words < last)]):
            by_words.append(
                {"from_words": first, "sentences": len(chosen), "f1": round(f1(chosen.sum(0)), 2)}
            )
    return SentenceStatistics(counts, f1, METHOD, details={"by_words": by_words})


def share(part: str, whole: str) -> Callable[[Predictions, Config], dict[str, Any]]:
    """Return a metric: one of `COUNTS` as a percentage of another."""

    def metric(predictions: Predictions, config: Config) -> dict[str, Any]:
        sums = _sums(predictions)
        return _percent(sums[part], sums[whole])

    return metric


def evalb_f1(predictions: Predictions, config: Config) -> dict[str, Any]:
    """Return F1 over the sentences that EVALB does not skip."""
    counts = _counts(predictions)
    scored = counts[counts[:, COUNTS.index("skipped_by_evalb")] == 0]
    return {
        "score": round(f1(scored.sum(0)), 4) if len(scored) else None,
        "sentences": len(scored),
        "left_out": len(counts) - len(scored),
    }


def exact_match(predictions: Predictions, config: Config) -> dict[str, Any]:
    exact = _sums(predictions)["exact"]
    return _percent(exact, len(predictions.hypotheses)) | {"sentences": exact, "how": EXACT_MATCH}


def well_formed(predictions: Predictions, config: Config) -> dict[str, Any]:
    """Return the share of raw outputs that are valid trees with one tag per word.

    They are not repaired.
    """
    pairs = zip(predictions.outputs, predictions.sources, strict=True)
    count = sum(from_linear(output, source.split())[1] for output, source in pairs)
    return _percent(count, len(predictions.outputs))


METRICS = [
    Metric("f1", "F1", statistics=labelled_f1, confidence_interval=True),
    Metric("precision", "precision", share("matched", "predicted")),
    Metric("recall", "recall", share("matched", "gold")),
    Metric("evalb_f1", "F1 as EVALB", evalb_f1),
    Metric("exact_match", "exact match", exact_match, unit="%"),
    Metric("tagging_accuracy", "tagging accuracy", share("correct_tags", "words"), unit="%"),
    Metric("well_formed", "well-formed", well_formed, unit="%"),
]


class Parsing(Task):
    """Words to linearized trees; users see bracketed trees."""

    metrics = METRICS
    supports_prefixes = False
    tokenizer_keys = ("parsing.word_numbers",)

    def validate_config(self):
        super().validate_config()
        data = self.config.data
        if (
            data.joint_vocabulary
            or data.tokenizer not in ("bpe", "unigram")
            or data.tokenizer_model
        ):
            raise UserError(
                "config.data.task = parsing has different vocabularies for words and tree symbols:"
                " set data.joint_vocabulary = false and model.tie_embeddings = decoder or none, and"
                " no data.tokenizer_model."
            )
        if data.on_too_long == "truncate":
            raise UserError(
                "config.data.on_too_long = 'truncate' would produce trees that do not match their"
                " sentences: use 'drop' with config.data.task = parsing."
            )

    def open_source(self, spec, *, key):
        return open_trees(spec, root=self.config.data.root, key=key)

    def train_tokenizers(self, source):
        sentences = (
            sentence for sentence, _ in source.sample(self.config.data.tokenizer_sentences)
        )
        trees = (target for _, target in source.pairs())
        data, symbols = self.config.data, list(control_symbols(self.config))
        if count := self.config.group("parsing").word_numbers:
            return TokenizerPair(
                NumberedWords.of(sentences, data, count, symbols), NumberedSymbols.of(trees, count)
            )
        words = SentencePieceTokenizer.train(sentences, data, symbols)
        return TokenizerPair(words, SymbolTokenizer.of(trees))

    def preprocess_source(self, text):
        return escaped(unescaped(text))

    def preprocess_target(self, source, text):
        trees = [tree for _, tree in read_trees([text], "the target")]
        if len(trees) != 1:
            raise UserError(f"the target contains {len(trees)} trees, expected one: (TOP (S ...)).")
        if [leaf.word for leaf in leaves(trees[0])] != self.preprocess_source(source).split():
            words = " ".join(leaf.word for leaf in leaves(trees[0]))
            raise UserError(f"the target is a tree over other words than the source: {words}.")
        return linear(trees[0])

    def postprocess(self, source, output):
        return bracketed(from_linear(output, source.split())[0]) if source.strip() else ""

    def summary(self, scores):
        value = {name: score["score"] for name, score in scores.items() if isinstance(score, dict)}
        evalb, interval = value["evalb_f1"], scores["f1"].get("confidence")
        as_evalb = "no sentence scored" if evalb is None else f"{evalb:.2f}"
        confidence = f" [{interval['low']:.2f}, {interval['high']:.2f}]" if interval else ""
        return [
            (
                f"  F1 {value['f1']:.2f}{confidence}   precision {value['precision']:.2f}   recall"
                f" {value['recall']:.2f}   (EVALB's rules, COLLINS.prm)   as EVALB: {as_evalb},"
                f" {scores['evalb_f1']['left_out']} sentences skipped"
            ),
            (
                f"  exact match {value['exact_match']:.1f}%   tagging accuracy"
                f" {value['tagging_accuracy']:.2f}%   well-formed outputs"
                f" {value['well_formed']:.2f}%   perplexity {scores['perplexity']:.3f}"
            ),
        ]
