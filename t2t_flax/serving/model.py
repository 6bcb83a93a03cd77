"""A run that answers requests: restored, warmed up and used by a thread of its own."""

import dataclasses
import functools
import json
import logging
import math
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from t2t_flax.config import Config
from t2t_flax.config.directions import Direction
from t2t_flax.decoding.batches import PREFIX_LENGTHS, plan_batches, round_up
from t2t_flax.decoding.translator import CACHE_LENGTHS, in_compute_type
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import Loaded
from t2t_flax.serving.batching import Batcher, Job
from t2t_flax.serving.errors import RequestError
from t2t_flax.serving.metrics import Metrics
from t2t_flax.tasks import task_of

log = logging.getLogger("t2t_flax")

Hypotheses = list[dict[str, Any]]
"""The n-best list of a line, best first: {"text", "score", "pieces"}."""
MAX_SAMPLES = 16
"""Outputs per line with decode.strategy=sample, for which no beam limits their number."""
MAX_ATTENTION_TOKENS = 128
"""Tokens of a side whose attention is sent: the answer grows with their product."""
_WARM_LENGTHS = (24, 100)
"""Tokens of the lines that are translated before the first request: one for each of the usual padded lengths."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line to translate, its number within its request, the forced beginning of its translation, how many of them, and of a
    model of several directions the language.
    """

    number: int
    text: str
    prefix: str
    n_best: int
    target_language: str | None = None


class Pair(NamedTuple):
    """A pair to score, or whose attention to compute; target None = the model's own translation."""

    source: str
    target: str | None
    target_language: str | None = None


@dataclasses.dataclass(frozen=True)
class TranslateKey:
    """What lines of a batch share. n_best: hypotheses searched for, of which a request may return fewer. alone: differs from
    request to request where outputs depend on the line's number.
    """

    n_best: int
    prefix_length: int
    alone: object = None


@dataclasses.dataclass(frozen=True)
class ScoreKey:
    """All pairs to score share batches."""


@dataclasses.dataclass(frozen=True)
class AttentionKey:
    """Each pair is a batch of its own."""

    alone: object


class ServedModel:
    """One run. `load` restores it, in the thread that then owns it and makes all its batches.

    Requests may be submitted once `ready` is true, from any thread. If loading fails, `error` is set and on_failure() called.
    """

    _restored: Loaded

    def __init__(
        self,
        name: str,
        config: Config,
        load: Callable[[], Loaded],
        batcher: Batcher[Any],
        max_batch: int,
        metrics: Metrics,
    ):
        self.name, self.config, self.ready = name, config, False
        self.error: Exception | None = None
        self._load, self._batcher, self._max_batch, self._metrics = load, batcher, max_batch, metrics
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._runs: dict[int, Loaded] = {}
        metrics.queue.labels(name).set_function(lambda: batcher.waiting)

    def start(self, on_ready: Callable[["ServedModel"], None], on_failure: Callable[[], None]) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, args=(on_ready, on_failure), name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancels what is in the queue, and waits for the end of the current batch."""
        self._stopping.set()
        self._batcher.close()
        if self._thread:
            self._thread.join()

    @property
    def directions(self) -> list[Direction]:
        """Those of the model, and of the test sets of its config, which need not have training text."""
        return self._restored.languages.all_directions(self.config.data)

    @property
    def target_languages(self) -> list[str]:
        """Those between which a request chooses; empty for a model of one direction."""
        return self._restored.languages.targets

    @property
    def max_n_best(self) -> int:
        decode = self.config.decode
        return {"beam": decode.beam_size, "greedy": 1, "sample": MAX_SAMPLES}[decode.strategy]

    def describe(self) -> dict[str, Any]:
        """The model's entry in GET /api/models."""
        model, loaded = self.config.model, self._restored
        source, target = loaded.languages.pair(self.config.data)
        return {
            "name": self.name,
            "workdir": os.path.basename(os.path.abspath(loaded.workdir)),
            "steps": list(loaded.steps),
            "engine": str(loaded.engine),
            "task": self.config.data.task,
            "source": source,
            "target": target,
            "target_languages": self.target_languages,
            "layers": {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers},
            "heads": model.num_heads,
            "beam_size": self.config.decode.beam_size if self.config.decode.strategy == "beam" else 1,
            "max_n_best": self.max_n_best,
            "max_source_tokens": loaded.max_source_length,
            "parameters": _count(loaded.params),
        }

    def translate(
        self, lines: Sequence[str], prefixes: Sequence[str], n_best: int, target_language: str | None = None
    ) -> Job[Line]:
        """Queues the lines that need a search; each result is `Hypotheses`, best first, of the item's line. Lines in several
        languages share batches.

        Raises RequestError for a line or prefix that is too long, and for prefixes and an n_best that the run cannot have.
        Raises UserError for a target language that the model does not know, or that it needs.
        """
        self._restored.languages.chosen(self.config.data, target_language)
        if not 1 <= n_best <= self.max_n_best:
            raise RequestError(
                400, f"n_best = {n_best}: {self.name} gives 1 to {self.max_n_best} translations of a line."
            )
        for number, line in enumerate(lines, 1):
            self._check_length("source", f"line {number}", line)
        if any(prefixes) and not task_of(self.config).supports_prefixes:
            raise RequestError(
                400, f"outputs of {self.name} (data.task = {self.config.data.task}) cannot have a prefix."
            )
        longest = max(
            (self._check_length("target", f"prefix {i}", p) for i, p in enumerate(prefixes, 1) if p), default=0
        )
        alone = object() if self.config.decode.strategy == "sample" else None
        key = TranslateKey(self._searched(n_best), round_up(longest, PREFIX_LENGTHS), alone)
        items = [
            Line(i, line, prefix, n_best, target_language)
            for i, (line, prefix) in enumerate(zip(lines, prefixes, strict=True))
            if line.strip() or prefix or alone  # samples depend on a line's number in its batch
        ]
        return self._batcher.submit(key, items)

    def untranslated(self, line: str, n_best: int) -> Hypotheses:
        """What an empty line without a prefix translates to."""
        return [{"text": task_of(self.config).postprocess(line, ""), "score": 0.0, "pieces": []}] * n_best

    def _searched(self, n_best: int) -> int:
        """decode.n_best of the search for `n_best` hypotheses: one of two, so that few programs are compiled and batches are
        shared. The best n of more are those that a search for n returns, except with the rules excluded here.
        """
        decode = self.config.decode
        same = decode.strategy == "beam" and decode.early_stopping != "top_finished"
        return decode.beam_size if same and n_best > 1 else n_best

    def score(self, source: str, target: str, target_language: str | None = None) -> Job[Pair]:
        """Queues a pair; its result is a `PairScore`. Raises UserError as `translate`."""
        self._restored.languages.chosen(self.config.data, target_language)
        return self._batcher.submit(ScoreKey(), [Pair(source, target, target_language)])

    def attend(self, source: str, target: str | None, target_language: str | None = None) -> Job[Pair]:
        """Queues a pair; its result is the JSON text of the weights. Raises RequestError for a long source or target, and
        UserError as `translate`.
        """
        self._restored.languages.chosen(self.config.data, target_language)
        for name, text in (("source", source), ("target", target or "")):
            tokens = self._check_length(name, "the " + name, text)
            if tokens > MAX_ATTENTION_TOKENS:
                raise RequestError(400, _too_long_for_attention(name, tokens))
        return self._batcher.submit(AttentionKey(object()), [Pair(source, target, target_language)])

    def _check_length(self, side: str, where: str, text: str) -> int:
        """The number of tokens with EOS. Raises RequestError if the model does not take as many."""
        loaded = self._restored
        text = task_of(self.config).preprocess_source(text) if side == "source" and text.strip() else text
        tokens = len(getattr(loaded.tokenizers, side).encode(text)) + 1
        if side == "source" and self.target_languages:
            tokens += 1  # the target language's
        if tokens > loaded.max_source_length:
            limit = loaded.max_source_length
            raise RequestError(
                400, f"{where} has {tokens} tokens, more than the {limit} allowed: send a sentence per line."
            )
        return tokens

    def _run(self, on_ready: Callable[["ServedModel"], None], on_failure: Callable[[], None]) -> None:
        try:
            loaded = self._load()
            if loaded.engine.name == "jax":
                loaded = dataclasses.replace(loaded, params=in_compute_type(loaded.model, loaded.params))
            if languages := loaded.languages.targets:
                loaded = dataclasses.replace(
                    loaded, target_language=languages[0]
                )  # of the warm-up; requests name theirs
            self.config, self._restored = loaded.config, loaded
            for warm_up in self._warm_ups(loaded):
                if self._stopping.is_set():
                    return
                warm_up()
        except Exception as error:
            self.error = error
            on_failure()
            return
        self.ready = True
        on_ready(self)
        self._batcher.run(self._process)

    def _warm_ups(self, loaded: Loaded) -> Iterator[Callable[[], object]]:
        """What to run before the first request: a translation of each shape of a batch, of which those of one line also for
        several hypotheses, so that JAX compiles the programs; one of each kind with an engine that does not compile.
        """
        kinds = sorted({1, self._searched(self.max_n_best)}) if self.config.decode.strategy == "beam" else [1]
        if loaded.engine.name != "jax":
            yield from (functools.partial(self._loaded(n_best).translate, ["a"]) for n_best in kinds)
            return
        for count, tokens in _warm_up_shapes(loaded, self._max_batch):
            for n_best in kinds if count == 1 else [1]:
                yield functools.partial(_warm_up, self._loaded(n_best), count, tokens)

    def _loaded(self, n_best: int) -> Loaded:
        """The run with this decode.n_best, for the model's thread alone; the runs share their parameters and compiled
        programs.
        """
        if n_best not in self._runs:
            config = self._restored.config
            config = dataclasses.replace(config, decode=dataclasses.replace(config.decode, n_best=n_best))
            self._runs[n_best] = dataclasses.replace(self._restored, config=config)
        return self._runs[n_best]

    def _process(self, key: Hashable, items: list[Any]) -> list[Any]:
        if isinstance(key, TranslateKey):
            return self._translate(key, items)
        if isinstance(key, ScoreKey):
            pairs, languages = [item[:2] for item in items], [item.target_language for item in items]
            return list(self._loaded(1).score(pairs, target_language=languages, where=lambda number: "the pair"))
        return [self._attend(*pair) for pair in items]

    def _translate(self, key: TranslateKey, items: list[Line]) -> list[Hypotheses]:
        loaded, task = self._loaded(key.n_best), task_of(self.config)
        prefixes = [item.prefix for item in items] if key.prefix_length else None
        translations = loaded.translate(
            [item.text for item in items],
            prefixes=prefixes,
            target_language=[item.target_language for item in items],
            first_line=items[0].number,
        )
        pieces, results = loaded.tokenizers.target.pieces, []
        for item, translation in zip(items, translations, strict=True):
            results.append(
                [
                    {"text": task.postprocess(item.text, h.text), "score": h.score, "pieces": pieces(h.tokens)}
                    for h in translation.hypotheses[: item.n_best]
                    if math.isfinite(h.score)  # a slot without a hypothesis has score -inf
                ]
            )
        lines = sum(bool(item.text.strip()) for item in items)
        self._metrics.batch_lines.labels(self.name).observe(len(items))
        self._metrics.sentences.labels(self.name).inc(lines)
        self._metrics.tokens.labels(self.name).inc(sum(len(t.hypotheses[0].tokens) for t in translations))
        return results

    def _attend(self, source: str, target: str | None, target_language: str | None) -> str:
        maps = self._loaded(1).attend(source, target, target_language=target_language)
        if len(maps.target_tokens) > MAX_ATTENTION_TOKENS:
            raise UserError(_too_long_for_attention("target", len(maps.target_tokens)))
        weights = {
            kind: getattr(maps, kind).astype(np.float64).round(4).tolist() for kind in ("cross", "encoder", "decoder")
        }
        pieces = {"source_pieces": list(maps.source_tokens), "target_pieces": list(maps.target_tokens)}
        return json.dumps({"model": self.name, **pieces, **weights}, ensure_ascii=False, separators=(",", ":"))


def _too_long_for_attention(side: str, tokens: int) -> str:
    return f"the {side} has {tokens} tokens: attention is sent for at most {MAX_ATTENTION_TOKENS}."


def _count(params: Any) -> int:
    import jax

    return sum(x.size for x in jax.tree.leaves(params))


def _warm_up_shapes(loaded: Loaded, max_batch: int) -> Iterator[tuple[int, int]]:
    """(lines, tokens of each) for every shape that batches of up to `max_batch` lines of usual lengths have."""
    shards, seen = mesh_lib.batch_shards(loaded.mesh), set()
    for tokens in _WARM_LENGTHS:
        for count in range(1, max_batch + 1):
            shapes = {batch.shape for batch in plan_batches([tokens] * count, loaded.config.decode, shards)}
            if shapes - seen:
                seen |= shapes
                yield count, tokens


def _warm_up(loaded: Loaded, count: int, tokens: int) -> None:
    """Translates `count` lines of about `tokens` tokens, once to an end within the first cache, and once to one token more
    than it holds, so that the programs after it are compiled, too.
    """
    encode, text = loaded.tokenizers.source.encode, "a"
    while len(encode(text)) < min(tokens, loaded.max_source_length) - 1 and len(text) < 4 * tokens:
        text += " a"
    first_cache = CACHE_LENGTHS[0 if tokens <= CACHE_LENGTHS[1] else 1]
    for cap in (1, first_cache + 1):
        decode = dataclasses.replace(loaded.config.decode, max_length_ratio=0.0, max_length_offset=cap)
        short = dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, decode=decode))
        short.translate([text] * count)
