"""How a restored run answers lines with translations."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from t2t_flax.cli.line_loop import Answering, Answers, Note, window_size
from t2t_flax.cli.line_windows import Line

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel

_CUT = "truncated to config.decode.max_source_length"
_ENDED = "ended by the length limit (config.decode.max_length_offset)"


class Translating(Answering):
    """Translates lines. scores: write them beside the translations."""

    verb = "translated"

    def __init__(self, loaded: "TrainedModel", *, scores: bool):
        self._loaded, self._scores = loaded, scores
        self.window = window_size(loaded)

    def introduce(self, say: Callable[[str], None]) -> None:
        """Names the decoder, where the user chose one."""
        if self._loaded.config.decode.engine != "jax":
            say(f"decoding with {self._loaded.decoder}")

    def answer(self, window: list[Line], progress: Callable[[int, int], None]) -> Answers:
        """The translations of consecutive lines: n_best of each. An empty line has an empty translation; a source that is too
        long is truncated, and said.
        """
        from t2t_flax.tasks import task_of

        task, n_best = task_of(self._loaded.config), self._loaded.config.decode.n_best
        starts = None if window[0].beside is None else [line.beside or "" for line in window]
        translations = self._loaded.translate(
            [line.text for line in window], prefixes=starts, first_line=window[0].number, progress=progress
        )
        out, notes = [], []
        for line, translation in zip(window, translations, strict=True):
            answers = [task.postprocess(line.text, h.text) for h in translation.hypotheses]
            out += _format(line.number, answers, [h.score for h in translation.hypotheses], n_best, self._scores)
            notes += [Note(_CUT, line.number)] if translation.source_cut else []
            notes += [Note(_ENDED, line.number)] if translation.hit_cap else []
        return Answers("".join(line + "\n" for line in out), notes)


def _format(number: int, answers: list[str], scores: list[float], n_best: int, with_scores: bool) -> list[str]:
    if n_best == 1:
        return [f"{answers[0]}\t{scores[0]:.4f}" if with_scores else answers[0]]
    ends = [f" ||| {score:.4f}" if with_scores else "" for score in scores]
    return [f"{number} ||| {answer}{end}" for answer, end in zip(answers, ends, strict=True)]
