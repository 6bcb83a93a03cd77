"""A run that answers requests: restored, warmed up and used by threads of its own."""

import bisect
import concurrent.futures
import dataclasses
import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from t2t_flax.config import Config
from t2t_flax.decoding.batches import PREFIX_LENGTHS, hypotheses_per_sentence, read_lines, round_up
from t2t_flax.errors import UserError, first_line
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.extensions.serving.batching import Batcher, Job
from t2t_flax.extensions.serving.compiling import Stopping
from t2t_flax.extensions.serving.items import SCORES, Line, Pair, TranslateKey, Work
from t2t_flax.extensions.serving.lane import Lane
from t2t_flax.extensions.serving.metrics import Metrics
from t2t_flax.extensions.serving.probe import NotFinite, check_finite
from t2t_flax.extensions.serving.reload import other_checkpoints
from t2t_flax.extensions.serving.text import RequestError
from t2t_flax.extensions.serving.warm_up import USUAL_LENGTHS, WarmUp, own_text, rest_of_usual, usual
from t2t_flax.extensions.shared import attention_maps
from t2t_flax.extensions.shared.directions import Direction, codes_of, model_directions
from t2t_flax.registry import ANALYSES, STEPS
from t2t_flax.tasks import task_of

log = logging.getLogger("t2t_flax")
Hypotheses = list[dict[str, Any]]
"""The n-best list of a line, best first: {"text", "score", "pieces"}."""
MAX_SAMPLES = 16
"""Outputs per line with decode.strategy=sample, for which no beam limits their number."""
MAX_ATTENTION_TOKENS = 128
"""Tokens of a side whose attention is sent: the answer grows with their product."""
_PATIENCE = 10
"""Only the lane of short lines has a good result within the health limit for certain; the others have so many times as long."""


class ServedModel:
    """One run. `load` restores it, in a thread that then owns it together with those of its other lanes.

    Requests may be submitted once `ready` is true, from any thread. If loading fails, or a thread ends by an exception, `error`
    is set and on_failure() called. health_limit: seconds without a good result after which `fault` says so. watch: what differs
    once `load` would restore another checkpoint, looked at every `every` seconds; None = the first one stays.
    """

    _restored: TrainedModel

    def __init__(
        self,
        name: str,
        config: Config,
        load: Callable[[], TrainedModel],
        make_batcher: Callable[[], Batcher[Any]],
        max_batch: int,
        metrics: Metrics,
        health_limit: float = 60.0,
        watch: Callable[[], object] | None = None,
        every: float = 60.0,
    ):
        self.name, self.config, self.ready = name, config, False
        self.error: BaseException | None = None
        self._load, self._max_batch, self._metrics = load, max_batch, metrics
        self._watch, self._every = watch, every
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._runs = threading.local()
        limits = [health_limit, *[_PATIENCE * health_limit] * len(USUAL_LENGTHS)]
        self._lanes = [Lane(f"{name}-{i}", make_batcher(), limit, i > 0) for i, limit in enumerate(limits)]
        metrics.queue.labels(name).set_function(lambda: sum(lane.batcher.waiting for lane in self._lanes))

    def start(
        self,
        on_ready: Callable[["ServedModel"], None],
        on_failure: Callable[[], None],
        wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts the first thread. wait(): returns when the programs that it asked for are compiled."""
        self._spawn(self.name, lambda: self._begin(on_ready, on_failure, wait), on_failure)

    def compile_rest(self, on_failure: Callable[[], None]) -> None:
        """Starts a thread that has the programs compiled that usual requests may need, beyond those of most of them."""

        def run() -> None:
            try:
                self._warm_up(rest_of_usual)
            except (Stopping, concurrent.futures.CancelledError):
                pass
            except Exception:  # who needs what is missing gets the error
                log.exception("%s: programs for later requests cannot be compiled", self.name)

        self._spawn(f"{self.name}-rest", run, on_failure)

    def stop(self, seconds: float = threading.TIMEOUT_MAX) -> bool:
        """Cancels what is in the queues, and waits for the end of the current batches, at most so long. Returns whether they
        ended.
        """
        deadline = time.monotonic() + seconds
        self._stopping.set()
        self._close()
        for thread in self._threads:
            thread.join(min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX))
        return not any(thread.is_alive() for thread in self._threads)

    def fault(self) -> str:
        """Why the model does not answer as it should; "" if it does, or is still loaded."""
        faults = [self.error and first_line(self.error), *(lane.fault() for lane in self._lanes if self.ready)]
        return next((f"{self.name}: {fault}" for fault in faults if fault), "")

    @functools.cached_property
    def directions(self) -> list[Direction]:
        """Those of the model, and of the test sets of its config, which need not have training text."""
        trained, others = model_directions(self.config, self._restored.tokenizers.source)
        return [*trained, *others]

    @property
    def target_languages(self) -> list[str]:
        """Those between which a request chooses; empty for a model of one direction."""
        return list(self._restored.tokenizers.source.target_languages)

    @property
    def max_n_best(self) -> int:
        decode = self.config.decode
        return MAX_SAMPLES if decode.strategy == "sample" else hypotheses_per_sentence(decode)

    def describe(self) -> dict[str, Any]:
        """The model's entry in GET /api/models."""
        model, decode, loaded = self.config.model, self.config.decode, self._restored
        source, target = codes_of(self.directions)
        return {
            "name": self.name,
            "workdir": os.path.basename(os.path.abspath(loaded.workdir)),
            "steps": list(loaded.steps),
            "engine": str(loaded.decoder),
            "task": self.config.data.task,
            "source": source,
            "target": target,
            "target_languages": self.target_languages,
            "layers": {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers},
            "heads": model.num_heads,
            "beam_size": 1 if decode.strategy == "sample" else hypotheses_per_sentence(decode),
            "max_n_best": self.max_n_best,
            "max_source_tokens": loaded.max_source_length,
            "parameters": _count(loaded.params),
        }

    def sentences(self, lines: Sequence[str], target_language: str | None, source_language: str) -> list[Any]:
        """The analysis `sentences` of each line."""
        sentences_of = ANALYSES.load("sentences")
        return [sentences_of(self._restored, line, target_language, source_language) for line in lines]

    def translate(
        self,
        lines: Sequence[str],
        prefixes: Sequence[str],
        n_best: int,
        target_language: str | None = None,
        places: Sequence[str] | None = None,
    ) -> Job[Line]:
        """Queues the lines that need a search; each result is `Hypotheses`, best first, of the item's line. Lines in several
        languages share batches. places: what errors call each line.

        Raises RequestError for a line or prefix that is too long, and for prefixes and an n_best that the run cannot have.
        Raises UserError for a target language that the model does not know, or that it needs.
        """
        lines = [self._restored.in_language(line, target_language) for line in lines]
        if not 1 <= n_best <= self.max_n_best:
            raise RequestError(
                400, f"n_best = {n_best}: {self.name} gives 1 to {self.max_n_best} translations of a line."
            )
        places = places or [f"line {i}" for i in range(1, len(lines) + 1)]
        texts, _ = read_lines(self.config, self._restored.tokenizers, lines, 0)
        longest = max((self._check_length("source", *each) for each in zip(places, texts, strict=True)), default=0)
        if any(prefixes) and not task_of(self.config).supports_prefixes:
            raise RequestError(
                400, f"outputs of {self.name} (data.task = {self.config.data.task}) cannot have a prefix."
            )
        longest_prefix = max(
            (self._check_length("target", f"prefix {i}", p) for i, p in enumerate(prefixes, 1) if p), default=0
        )
        alone = object() if self.config.decode.strategy == "sample" else None
        key = TranslateKey(self._searched(n_best), round_up(longest_prefix, PREFIX_LENGTHS), alone)
        items = [
            Line(i, line, prefix, n_best)
            for i, (line, prefix) in enumerate(zip(lines, prefixes, strict=True))
            if line.strip() or prefix or alone  # samples depend on a line's number in its batch
        ]
        usual = key.n_best == 1 and not key.prefix_length
        lane = bisect.bisect_left(USUAL_LENGTHS, longest) if usual else -1
        return self._lanes[lane].batcher.submit(key, items)

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
        source = self._restored.in_language(source, target_language)
        return self._lanes[-1].batcher.submit(SCORES, [Pair(source, target)])

    def attend(self, source: str, target: str | None, target_language: str | None = None) -> Job[Pair]:
        """Queues a pair; its result is the analysis `attend`. Raises RequestError for a long source or target, and
        UserError as `translate`.
        """
        source = self._restored.in_language(source, target_language)
        for name, text in (("source", source), ("target", target or "")):
            tokens = self._check_length(name, "the " + name, text)
            if tokens > MAX_ATTENTION_TOKENS:
                raise RequestError(400, _too_long_for_attention(name, tokens))
        return self._lanes[-1].batcher.submit(object(), [Pair(source, target)])

    def finish(self, do: Callable[[TrainedModel], Any]) -> Job[Work]:
        """Queues a function of the run; its result is what it returns."""
        return self._lanes[-1].batcher.submit(object(), [Work(do)])

    def _check_length(self, side: str, where: str, text: str) -> int:
        """The number of tokens with EOS. Raises RequestError if the model does not take as many."""
        loaded = self._restored
        text = task_of(self.config).preprocess_source(text) if side == "source" and text.strip() else text
        tokens = len(getattr(loaded.tokenizers, side).encode(text)) + 1
        if tokens > loaded.max_source_length:
            limit = loaded.max_source_length
            raise RequestError(
                400, f"{where} has {tokens} tokens, more than the {limit} allowed: send a sentence per line."
            )
        return tokens

    def _spawn(self, name: str, work: Callable[[], None], on_failure: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - a thread that ends must not leave a server that looks well
                self.error = error
                self._close()
                on_failure()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _close(self) -> None:
        for lane in self._lanes:
            lane.batcher.close()

    def _begin(
        self, on_ready: Callable[["ServedModel"], None], on_failure: Callable[[], None], wait: Callable[[], None]
    ) -> None:
        seen = self._watch and self._watch()
        self._restored = self._load().for_decoding()  # nothing else may hold it: another checkpoint may take its place
        self.config = self._restored.config
        try:
            self._warm_up(usual)
            if jax.default_backend() != "cpu":  # without a child that would compile it beside requests
                self._warm_up(rest_of_usual)
            wait()
            self._probe()
        except (Stopping, concurrent.futures.CancelledError):
            return
        except NotFinite as error:
            raise UserError(f"{self._restored.workdir}: {error}. Choose another checkpoint with --step.") from None
        for lane in self._lanes[1:]:
            self._spawn(lane.name, functools.partial(lane.run, self._process, self._probe), on_failure)
        first = self._lanes[0]
        first.good()
        self.ready = True
        self._metrics.step.labels(self.name).set(self._restored.steps[0])
        on_ready(self)
        if watch := self._watch:
            threading.Thread(target=self._follow, args=(watch, seen), name=f"{self.name}-reload", daemon=True).start()
        first.run(self._process, self._probe)

    def _warm_up(self, what: WarmUp) -> None:
        several = self._searched(self.max_n_best) if self.config.decode.strategy == "beam" else 1
        for warm_up in what([self._loaded(n_best) for n_best in sorted({1, several})], self._max_batch):
            if self._stopping.is_set():
                return
            warm_up()

    def _follow(self, watch: Callable[[], object], seen: object) -> None:
        """Translates with other checkpoints from the next batch on, as they come; programs stay as they are."""
        changed = functools.partial(self._stopping.wait, self._every)
        for loaded in other_checkpoints(self.name, self._restored, self._load, watch, seen, changed):
            self._restored = loaded
            self._runs = threading.local()  # after it, see `_loaded`
            self._metrics.step.labels(self.name).set(self._restored.steps[0])

    def _loaded(self, n_best: int) -> TrainedModel:
        """The run with this decode.n_best, for the calling thread alone; all share their parameters and compiled programs."""
        made = vars(self._runs)
        restored = self._restored  # read last, so that an old one comes into no new `_runs`
        if n_best not in made:
            config = restored.config
            config = dataclasses.replace(config, decode=dataclasses.replace(config.decode, n_best=n_best))
            made[n_best] = dataclasses.replace(restored, config=config)
        return made[n_best]

    def _probe(self) -> None:
        """Translates a line of the server's own. Raises NotFinite."""
        (translation,) = self._loaded(1).translate([own_text(self._restored)])
        check_finite(translation)

    def _process(self, key: Hashable, items: list[Any]) -> list[Any]:
        if isinstance(key, TranslateKey):
            return self._translate(key, items)
        if key == SCORES:
            scores = self._loaded(1).score(items, where=lambda number: "the pair")
            if not all(math.isfinite(score.log_prob) for score in scores):
                raise NotFinite
            return list(scores)
        if isinstance(items[0], Work):
            return [item.do(self._loaded(1)) for item in items]
        return [self._attend(*pair) for pair in items]

    def _translate(self, key: TranslateKey, items: list[Line]) -> list[Hypotheses]:
        loaded, task = self._loaded(key.n_best), task_of(self.config)
        prefixes = [item.prefix for item in items] if key.prefix_length else None
        translations = loaded.translate(
            [item.text for item in items],
            prefixes=prefixes,
            first_line=items[0].number,
        )
        pieces, results = loaded.tokenizers.target.pieces, []
        has_rules = any(STEPS.of(self.config))
        for item, translation in zip(items, translations, strict=True):
            if has_rules and translation.is_none:
                raise UserError(f"line {item.number + 1} has no translation that keeps all rules on tokens.")
            check_finite(translation)
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

    def _attend(self, source: str, target: str | None) -> Any:
        maps = attention_maps.attend(self._loaded(1), source, target)
        if len(maps.target_tokens) > MAX_ATTENTION_TOKENS:
            raise UserError(_too_long_for_attention("target", len(maps.target_tokens)))
        if not all(np.isfinite(weights).all() for weights in (maps.cross, maps.encoder, maps.decoder)):
            raise NotFinite
        return maps


def _too_long_for_attention(side: str, tokens: int) -> str:
    return f"the {side} has {tokens} tokens: attention is sent for at most {MAX_ATTENTION_TOKENS}."


def _count(params: Any) -> int:
    return sum(x.size for x in jax.tree.leaves(params))
