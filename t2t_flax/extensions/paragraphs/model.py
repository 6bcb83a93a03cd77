"""A model that translates lines sentence by sentence."""

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from t2t_flax.cli.arguments import Change
from t2t_flax.config import Config
from t2t_flax.config.schema import fields
from t2t_flax.decoding.translator import Hypothesis, Translation
from t2t_flax.errors import UserError
from t2t_flax.extensions.shared.sentences import Sentences, sentences_of

_LINES = "constraints.lines"
"""Key for lines that hold more than their text."""


def check_splits(config: Config) -> None:
    """Raise UserError for settings under which lines cannot be split.

    These are a task other than translation, samples, which depend on the number of their line, and
    lines that hold more than a text.
    """
    if config.data.task != "translation":
        raise UserError(
            f"--split-sentences is for data.task = translation, not {config.data.task}."
        )
    if config.decode.strategy == "sample":
        raise UserError(
            "--split-sentences needs decode.strategy = beam or greedy: a sample depends on the"
            " number of its line."
        )
    if _LINES in fields() and config.value(_LINES):
        raise UserError(
            f"--split-sentences takes lines of text alone, not what config.{_LINES} ="
            f" {config.value(_LINES)} adds."
        )


class SentenceModel:
    """Trained model whose `translate` takes paragraphs.

    It wraps `evaluation.restore.TrainedModel`. Raises UserError as `check_splits`.
    """

    def __init__(self, model: Any):
        check_splits(model.config)
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def check_line(self, line: str, number: int = 0) -> None:
        """Raise what `translate` raises because of this line."""
        for sentence in sentences_of(self._model, line).sentences:
            self._model.check_line(sentence, number)

    def translate(
        self, lines: Sequence[str], *, prefixes=None, progress=None, **options: Any
    ) -> list[Translation]:
        """Translate as `Decoder.translate`, sentence by sentence.

        A Translation joins the translations of a line's sentences. A prefix begins the first of
        them.
        """
        paragraphs = [sentences_of(self._model, line) for line in lines]
        starts = list(itertools.accumulate((len(each.sentences) for each in paragraphs), initial=0))
        texts = [sentence for each in paragraphs for sentence in each.sentences]
        begun: list[str] | None = None
        if prefixes:
            begun = [""] * len(texts)
            for start, prefix in zip(starts, prefixes, strict=False):
                begun[start] = prefix

        def lines_done(done: int, total: int) -> None:
            assert progress
            progress(done * len(lines) // max(1, total), len(lines))

        options |= {"first_line": 0, "prefixes": begun, "progress": progress and lines_done}
        made = self._model.translate(texts, **options)
        return [
            joined(paragraph, made[start:end])
            for paragraph, (start, end) in zip(paragraphs, itertools.pairwise(starts), strict=True)
        ]


class SplitSentences(Change):
    """`--split-sentences`."""

    in_parts = True
    check = staticmethod(check_splits)

    def __init__(self, model: Any, value: str):
        self.model = SentenceModel(model)


def joined(paragraph: Sentences, translations: Sequence[Translation]) -> Translation:
    """Return the translation of a paragraph.

    Its i-th hypothesis joins the i-th hypothesis of each sentence. log_prob is their sum, score the
    mean of their scores.
    """
    hypotheses = []
    for parts in zip(*(translation.hypotheses for translation in translations), strict=True):
        hypotheses.append(
            Hypothesis(
                paragraph.join([part.text for part in parts]),
                tuple(token for part in parts for token in part.tokens),
                statistics.fmean(part.score for part in parts),
                sum(part.log_prob for part in parts),
                any(part.hit_cap for part in parts),
            )
        )
    return Translation(
        tuple(hypotheses), any(translation.source_cut for translation in translations)
    )
