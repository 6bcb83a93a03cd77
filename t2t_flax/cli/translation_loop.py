"""Translates the windows of an input and writes them in order, with progress and warnings."""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from t2t_flax.cli.line_windows import Line

if TYPE_CHECKING:
    from t2t_flax.cli.resumable_output import ResumableOutput, StreamOutput
    from t2t_flax.decoding.translator import Translation
    from t2t_flax.evaluation.restore import Loaded

WINDOW_BATCHES = 128
"""Lines are read, sorted by length and translated in windows of this many batches, ..."""
WINDOW_LINES = 2**14
"""... but of at least 8 batches and otherwise of at most this many lines."""
PROGRESS_SECONDS = 10.0


def window_size(loaded: "Loaded") -> int:
    """Lines of a full window."""
    from t2t_flax.distributed import mesh as mesh_lib

    rows = loaded.config.decode.batch_size * mesh_lib.batch_shards(loaded.mesh)
    return rows * min(WINDOW_BATCHES, max(8, WINDOW_LINES // rows))


def output_settings(loaded: "Loaded", with_scores: bool) -> dict[str, Any]:
    """What the translations depend on. Batch sizes and the mesh may change when resuming."""
    from t2t_flax.training.checksums import checksums

    decode = dataclasses.asdict(loaded.config.decode)
    del decode["batch_size"]
    language = loaded.languages.chosen(loaded.config.data, loaded.target_language)  # the only one need not be named
    return (
        {f"decode.{key}": value for key, value in decode.items()}
        | {
            "--scores": with_scores,
            **({"--target-language": language} if language else {}),
            "checkpoints": list(loaded.steps),
            "parameters": sum(checksums(loaded.params, once=True).values()),
            "tokenizers": loaded.tokenizers.digest,
        }
        | ({} if loaded.engine.name == "jax" else {"engine": str(loaded.engine)})
    )


def to_stderr(text: str) -> None:
    """Prints a line on standard error."""
    print(text, file=sys.stderr, flush=True)


def translate_windows(
    loaded: "Loaded",
    windows: Iterator[list[Line]],
    output: "StreamOutput | ResumableOutput",
    *,
    scores: bool,
    after_batch: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = to_stderr,
) -> None:
    """Translates windows of consecutive lines one after the other and appends them to `output`. after_batch() is called
    after each batch; it may raise.
    """
    from t2t_flax.tasks import task_of

    task, n_best = task_of(loaded.config), loaded.config.decode.n_best
    warnings, progress = _Warnings(), _Progress(say)
    if loaded.config.decode.engine != "jax":
        say(f"decoding with {loaded.engine}")

    def report(done: int, total: int) -> None:
        after_batch()
        progress.update(done)

    for window in windows:
        texts, first = [line.text for line in window], window[0].number
        starts = None if window[0].prefix is None else [line.prefix for line in window]
        translations = loaded.translate(texts, prefixes=starts, first_line=first, progress=report)
        out = []
        for line, translation in zip(window, translations, strict=True):
            answers = [task.postprocess(line.text, h.text) for h in translation.hypotheses]
            out += _format(line.number, answers, [h.score for h in translation.hypotheses], n_best, scores)
            warnings.add(line.number + 1, translation)
        output.append(window, "".join(line + "\n" for line in out))
        progress.end_window(len(window))
    warnings.show(say)


def _format(number: int, answers: list[str], scores: list[float], n_best: int, with_scores: bool) -> list[str]:
    if n_best == 1:
        return [f"{answers[0]}\t{scores[0]:.4f}" if with_scores else answers[0]]
    ends = [f" ||| {score:.4f}" if with_scores else "" for score in scores]
    return [f"{number} ||| {answer}{end}" for answer, end in zip(answers, ends, strict=True)]


class _Progress:
    """A line every ten seconds."""

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._began = self._last = time.monotonic()
        self._before = 0

    def update(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last >= PROGRESS_SECONDS:
            self._last, lines = now, self._before + done
            self._say(f"translated {lines:,} lines, {lines / (now - self._began):.1f} lines/s")

    def end_window(self, lines: int) -> None:
        self._before += lines


class _Warnings:
    """Counts of truncated lines, with the first of them."""

    def __init__(self):
        self._lines = 0
        self._counts: dict[str, tuple[int, list[int]]] = {
            "truncated to config.decode.max_source_length": (0, []),
            "ended by the length limit (config.decode.max_length_offset)": (0, []),
        }

    def add(self, number: int, translation: "Translation") -> None:
        self._lines += 1
        for event, happened in zip(self._counts, (translation.source_cut, translation.hit_cap), strict=True):
            if happened:
                count, first = self._counts[event]
                self._counts[event] = (count + 1, first if len(first) == 10 else [*first, number])

    def show(self, say: Callable[[str], None]) -> None:
        for event, (count, first) in self._counts.items():
            if count:
                shown = ", ".join(map(str, first)) + (", ..." if count > len(first) else "")
                say(f"warning: {count} of {self._lines} lines {event}: line {shown}")
