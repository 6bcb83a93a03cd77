"""A run that answers requests from separate threads."""

import contextlib
import ctypes
import dataclasses
import functools
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from fastapi import HTTPException

from t2t_flax.config import Config
from t2t_flax.decoding.batches import hypotheses_per_sentence, read_lines, step_changes
from t2t_flax.decoding.translator import Translation
from t2t_flax.errors import UserError, first_line
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.extensions.serving.batching import Batcher, Job, compute
from t2t_flax.extensions.serving.metrics import Metrics
from t2t_flax.extensions.shared import attention_maps
from t2t_flax.extensions.shared.directions import Direction, codes_of, model_directions
from t2t_flax.tasks import task_of

log = logging.getLogger("t2t_flax")
Hypotheses = list[dict[str, Any]]
"""N-best list of a line, best first: {"text", "score", "pieces"}."""
MAX_SAMPLES = 16
"""Maximum outputs of a line with decode.strategy=sample."""
MAX_ATTENTION_TOKENS = 128
"""Maximum tokens of a side whose attention is sent.

The answer grows with their product.
"""
_SHORT = 128
"""Maximum tokens of a line that is translated in the first lane."""
_RARE_BATCH = 4
"""Maximum lines of a batch in the second lane.

Each size has a separate program, which takes some 20 MB.
"""
_COMPILES = 1.0
"""Seconds above which a batch may have compiled a program."""
_PROBES = 3
"""Probe lines that an idle lane translates within the health limit."""
_turn = threading.Lock()
"""Lock for programs on several devices.

They can wait for each other if two threads start them at once.
"""


class NotFinite(Exception):
    """Error for a number that is not finite."""

    def __init__(self) -> None:
        super().__init__("the model produces numbers that are not finite")


@dataclasses.dataclass(frozen=True)
class Line:
    """A line to translate.

    Args:
        number: number of the line within its request.
        n_best: number of hypotheses to return.
    """

    number: int
    text: str
    n_best: int


class Lane:
    """A queue, the thread that computes its batches, and its copies of the run.

    The copies differ in decode.n_best.
    """

    def __init__(self, max_batch: int, max_queue: int):
        self.max_batch = max_batch
        self.batcher = Batcher(max_batch, max_queue)
        self.runs: dict[int, TrainedModel] = {}
        self.busy_since: float | None = None
        self.failure = ""


class ServedModel:
    """One run.

    The first lane translates short lines with one hypothesis. All other work has the second lane,
    so that a program that is compiled for a rare request delays no usual one.

    Args:
        load: restores the run.
        health_limit: seconds after which a batch of the first lane counts as hanging.
    """

    _restored: TrainedModel

    def __init__(
        self,
        name: str,
        config: Config,
        load: Callable[[], TrainedModel],
        metrics: Metrics,
        *,
        max_batch: int,
        max_queue: int = 256,
        health_limit: float = 60.0,
    ):
        self.name = name
        self.config = config
        self.ready = False
        self.error: BaseException | None = None
        self._load = load
        self._metrics = metrics
        self._max_batch = max_batch
        self._limit = health_limit
        self._lanes = [Lane(most, max_queue) for most in (max_batch, min(max_batch, _RARE_BATCH))]
        self._threads: list[threading.Thread] = []
        metrics.queue.labels(name).set_function(
            lambda: sum(lane.batcher.waiting for lane in self._lanes)
        )

    def start(self, on_failure: Callable[[], None]) -> None:
        """Load the model in a separate thread.

        Args:
            on_failure: called if that thread or a later one ends by an error.
        """
        self._spawn(functools.partial(self._begin, on_failure), on_failure)

    def stop(self, seconds: float) -> bool:
        """Cancel the queued jobs; return whether current batches ended in `seconds`."""
        deadline = time.monotonic() + seconds
        self._close()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def busy(self) -> bool:
        """True while a batch is computed; warming up does not count."""
        return any(lane.busy_since is not None for lane in self._lanes)

    def fault(self) -> str:
        """Return why the model does not answer properly.

        "" if it does, or is still loading.
        """
        if self.error:
            return f"{self.name}: {first_line(self.error)}"
        first = self._lanes[0]
        since = first.busy_since
        if since is not None and self.ready and (silent := time.monotonic() - since) > self._limit:
            return f"{self.name}: no result for {silent:.0f} s"
        return f"{self.name}: {first.failure}" if first.failure else ""

    @functools.cached_property
    def directions(self) -> list[Direction]:
        """Directions of the model and of the test sets of its config."""
        trained, others = model_directions(self.config, self._restored.tokenizers.source)
        return [*trained, *others]

    @property
    def target_languages(self) -> list[str]:
        """Languages between which a request chooses; empty for a model of one direction."""
        return list(self._restored.tokenizers.source.target_languages)

    @property
    def source_languages(self) -> list[str]:
        """Languages whose symbol the model needs before their text; empty for most models."""
        return list(self._restored.tokenizers.source.source_languages)

    @property
    def max_n_best(self) -> int:
        """Maximum hypotheses of a line."""
        decode = self.config.decode
        return MAX_SAMPLES if decode.strategy == "sample" else hypotheses_per_sentence(decode)

    def describe(self) -> dict[str, Any]:
        """Return the model's entry in GET /api/models."""
        model, loaded = self.config.model, self._restored
        source, target = codes_of(self.directions)
        return {
            "name": self.name,
            "steps": list(loaded.steps),
            "engine": str(loaded.decoder),
            "source": source,
            "target": target,
            "target_languages": self.target_languages,
            "source_languages": self.source_languages,
            "layers": {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers},
            "heads": model.num_heads,
            "max_n_best": self.max_n_best,
            "max_source_tokens": loaded.max_source_length,
            "parameters": sum(x.size for x in jax.tree.leaves(loaded.params)),
        }

    def sentences(
        self, lines: Sequence[str], target_language: str | None, source_language: str
    ) -> list[Any]:
        """Return the `Sentences` of each line."""
        from t2t_flax.extensions.shared.sentences import sentences_of  # its package may be missing

        return [
            sentences_of(self._restored, line, target_language, source_language) for line in lines
        ]

    def translate(
        self,
        lines: Sequence[str],
        n_best: int,
        target_language: str | None = None,
        source_language: str | None = None,
    ) -> Job:
        """Queue the lines that need a search; the result of each is its `Hypotheses`.

        Raises HTTPException for a line that is too long and for too large an n_best, and UserError
        for a language that the model does not know, or that it needs.
        """
        run = self._restored
        lines = [
            run.in_language(run.from_language(line, source_language), target_language)
            for line in lines
        ]
        if not 1 <= n_best <= self.max_n_best:
            raise HTTPException(
                400, f"n_best = {n_best}: {self.name} gives 1 to {self.max_n_best} translations."
            )
        texts, _ = read_lines(self.config, self._restored.tokenizers, lines, 0)
        longest = max(
            (self._tokens("source", f"line {i}", text) for i, text in enumerate(texts, 1)),
            default=0,
        )
        sampled = self.config.decode.strategy == "sample"
        # Samples depend on the number of a line in its request, so such requests share no batch.
        key = self._searched(n_best), object() if sampled else None
        items = [Line(i, line, n_best) for i, line in enumerate(lines) if line.strip() or sampled]
        lane = self._lanes[0 if key[0] == 1 and longest <= _SHORT else 1]
        return lane.batcher.submit(key, items)

    def untranslated(self, line: str, n_best: int) -> Hypotheses:
        """Return the translations of an empty line."""
        return [
            {"text": task_of(self.config).postprocess(line, ""), "score": 0.0, "pieces": []}
        ] * n_best

    def attend(self, source: str, target: str | None, target_language: str | None = None) -> Job:
        """Queue the analysis `attend` of a pair; target None: the model's own translation.

        Raises HTTPException for a source or target that is too long, and UserError as `translate`.
        """
        source = self._restored.in_language(source, target_language)
        for side, text in (("source", source), ("target", target or "")):
            _check_attention(side, self._tokens(side, side, text))

        def attention(run: TrainedModel) -> Any:
            maps = attention_maps.attend(run, source, target)
            _check_attention("target", len(maps.target_tokens))
            if not all(
                np.isfinite(weights).all() for weights in (maps.cross, maps.encoder, maps.decoder)
            ):
                raise NotFinite
            return maps

        return self.run(attention)

    def run(self, do: Callable[[TrainedModel], Any]) -> Job:
        """Queue a function of the run; its result is the function's return value."""
        return self._lanes[1].batcher.submit(object(), [do])

    def _searched(self, n_best: int) -> int:
        """Return decode.n_best of the search for `n_best` hypotheses.

        It is one of two values, so that few programs are compiled. The best n of more are the ones
        that a search for n returns, except with the rules excluded here.
        """
        decode = self.config.decode
        same = decode.strategy == "beam" and decode.early_stopping != "top_finished"
        return decode.beam_size if same and n_best > 1 else n_best

    def _tokens(self, side: str, where: str, text: str) -> int:
        """Return the number of tokens with EOS.

        Raises HTTPException if the model does not take as many.
        """
        loaded = self._restored
        text = (
            task_of(self.config).preprocess_source(text)
            if side == "source" and text.strip()
            else text
        )
        tokens = len(getattr(loaded.tokenizers, side).encode(text)) + 1
        limit = loaded.max_source_length
        if tokens > limit:
            raise HTTPException(
                400,
                f"{where} has {tokens} tokens, more than the {limit} allowed: send shorter lines.",
            )
        return tokens

    def _spawn(self, work: Callable[[], None], on_failure: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - /health and the server's end tell it
                self.error = error
                self._close()
                on_failure()

        thread = threading.Thread(target=run, name=self.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _close(self) -> None:
        for lane in self._lanes:
            lane.batcher.close()

    def _begin(self, on_failure: Callable[[], None]) -> None:
        self._restored = self._load().for_decoding()
        self.config = self._restored.config
        first, second = self._lanes
        lines = 1
        try:
            while lines < 4 * self._max_batch:  # the sizes of batches, see `plan_batches`
                self._probe(first, min(lines, self._max_batch))
                lines *= 4
        except NotFinite as error:
            raise UserError(
                f"{self._restored.workdir}: {error}. Choose another checkpoint with --step."
            ) from None
        self._spawn(functools.partial(self._begin_second, second), on_failure)
        self.ready = True
        described = self.describe()
        steps = " and ".join(map(str, described["steps"]))
        print(
            f"{self.name}: ready (step {steps}; {described['engine']})", file=sys.stderr, flush=True
        )
        self._work(first)

    def _begin_second(self, lane: Lane) -> None:
        if self.config.decode.strategy == "beam":
            # The page and `alternatives` ask for several.
            self._probe(lane, n_best=self._searched(self.max_n_best))
        self._work(lane)

    def _work(self, lane: Lane) -> None:
        """Compute batches until the queue is closed.

        An idle lane translates a probe line from time to time.
        """
        every = self._limit / _PROBES
        while (parts := lane.batcher.take(every)) is not None:
            lane.busy_since = time.monotonic()
            error = compute(parts, functools.partial(self._process, lane))
            if not parts or error and not isinstance(error, UserError | HTTPException):
                try:
                    self._probe(lane)
                    lane.failure = ""
                except Exception as failure:
                    lane.failure = f"it fails: {first_line(failure)}"
                    log.exception("%s: a line of the server's own cannot be translated", self.name)
            if time.monotonic() - lane.busy_since > _COMPILES:
                _give_memory_back()
            lane.busy_since = None

    def _probe(self, lane: Lane, lines: int = 1, n_best: int = 1) -> None:
        """Translate a probe line. Raises NotFinite."""
        languages = self._restored.tokenizers.source.target_languages
        text = self._restored.from_language("a", next(iter(self.source_languages), None))
        text = self._restored.in_language(text, next(iter(languages), None))
        with self._device():
            translations = self._run_of(lane, n_best).translate([text] * lines)
        _check_finite(translations[0])

    def _run_of(self, lane: Lane, n_best: int) -> TrainedModel:
        """Return the lane's copy of the run with this decode.n_best.

        All copies share parameters and programs.
        """
        if n_best not in lane.runs:
            config = self._restored.config
            decode = dataclasses.replace(config.decode, n_best=n_best, batch_size=lane.max_batch)
            lane.runs[n_best] = dataclasses.replace(
                self._restored, config=dataclasses.replace(config, decode=decode)
            )
        return lane.runs[n_best]

    def _device(self) -> contextlib.AbstractContextManager:
        return _turn if self._restored.mesh.size > 1 else contextlib.nullcontext()

    def _process(self, lane: Lane, key: Hashable, items: list[Any]) -> list[Any]:
        if not isinstance(key, tuple):
            with self._device():
                return [do(self._run_of(lane, 1)) for do in items]
        loaded, task = self._run_of(lane, key[0]), task_of(self.config)
        with self._device():
            translations = loaded.translate(
                [item.text for item in items], first_line=items[0].number
            )
        has_rules = bool(step_changes(self.config))
        results: list[Hypotheses] = []
        for item, translation in zip(items, translations, strict=True):
            if has_rules and translation.is_none:
                raise UserError(
                    f"line {item.number + 1} has no translation that keeps all rules on tokens."
                )
            _check_finite(translation)
            results.append(
                [
                    {
                        "text": task.postprocess(item.text, hypothesis.text),
                        "score": hypothesis.score,
                        "pieces": loaded.tokenizers.target.pieces(hypothesis.tokens),
                    }
                    for hypothesis in translation.hypotheses[: item.n_best]
                    if math.isfinite(hypothesis.score)  # a slot without a hypothesis has score -inf
                ]
            )
        self._metrics.lines.labels(self.name).observe(len(items))
        self._metrics.tokens.labels(self.name).inc(
            sum(len(t.hypotheses[0].tokens) for t in translations)
        )
        return results


def _give_memory_back() -> None:
    """Return memory that the compiler has freed to the system.

    glibc does not do so by itself.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _check_finite(translation: Translation) -> None:
    """Raise NotFinite for a wrong score.

    A slot without a hypothesis has -inf; the first one always has a hypothesis.
    """
    scores = [hypothesis.score for hypothesis in translation.hypotheses]
    if not math.isfinite(scores[0]) or not all(
        math.isfinite(score) or score == -math.inf for score in scores
    ):
        raise NotFinite


def _check_attention(side: str, tokens: int) -> None:
    if tokens > MAX_ATTENTION_TOKENS:
        raise HTTPException(
            400,
            f"{side} has {tokens} tokens: attention is sent for at most {MAX_ATTENTION_TOKENS}.",
        )


def model_names(workdirs: Sequence[str]) -> list[str]:
    """Return unique base names of the folders.

    "-2", "-3" ... are added to make them unique.
    """
    names: list[str] = []
    for workdir in workdirs:
        base = os.path.basename(os.path.abspath(workdir)).removeprefix("pretrained:") or "run"
        numbered = [base, *(f"{base}-{number}" for number in range(2, len(workdirs) + 1))]
        names.append(next(name for name in numbered if name not in names))
    return names
