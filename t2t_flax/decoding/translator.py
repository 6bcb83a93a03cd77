"""Translation of lines: one output per line, in order, independent of the others."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config import Config, Decode
from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.batches import (
    PREFIX_LENGTHS,
    Batch,
    encode_lines,
    padded,
    plan_batches,
    read_lines,
    round_up,
    step_changes,
)
from t2t_flax.decoding.sampling import random_keys
from t2t_flax.decoding.search_loop import (
    IMPOSSIBLE,
    LENGTHS,
    Cache,
    Search,
    SearchResult,
    Sentences,
    by_rows,
    run_search,
)
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.mesh import Params
from t2t_flax.models.transformer import Transformer
from t2t_flax.registry import DECODERS, SEARCHES


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """Output of a search; an empty place has no tokens and the score -inf.

    Args:
        score: log-probability divided by the length penalty, after penalties on tokens.
        log_prob: the model's log-probability in nats, EOS included.
        hit_cap: whether the output has no EOS.
    """

    text: str
    tokens: tuple[int, ...]
    score: float
    log_prob: float
    hit_cap: bool


@dataclasses.dataclass(frozen=True)
class Translation:
    """N-best list of a sentence, best first (samples: by sample index).

    Args:
        source_cut: whether the source was truncated to decode.max_source_length.
    """

    hypotheses: tuple[Hypothesis, ...]
    source_cut: bool = False

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def hit_cap(self) -> bool:
        return self.hypotheses[0].hit_cap

    @property
    def is_none(self) -> bool:
        """True if there is no hypothesis, because no output follows the rules on tokens."""
        return all(hypothesis.score == -math.inf for hypothesis in self.hypotheses)


class Translator:
    """Translate lines with a model on a mesh, its tokenizers and a search.

    Args:
        at_once: number of batches that are decoded at the same time, each in its own thread.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizers: TokenizerPair,
        mesh: jax.sharding.Mesh,
        config: Config,
        *,
        at_once: int = 1,
    ):
        self._model, self._tokenizers, self._mesh, self._config = (
            model,
            tokenizers,
            mesh,
            config.decode,
        )
        self._source_eos, self._at_once = config.data.source_eos, at_once
        self._rows = mesh_lib.named(mesh, mesh_lib.ROWS)
        self._strategy: Search = SEARCHES.load(config.decode.strategy)(config, tokenizers)
        self._prepare = functools.partial(read_lines, config, tokenizers)
        self._step = DecodeStep(model)
        for change in step_changes(config).values():
            self._step = change.step(self._step, config, tokenizers)
        self._compiled: set[Hashable] = set()
        self._locks: dict[Hashable, threading.Lock] = {}

    def translate(
        self,
        params: Params,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        first_line: int = 0,
        progress: Callable[[int, int], None] | None = None,
        compiling: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ) -> list[Translation]:
        """Translate lines, one Translation per line.

        An empty line translates to its prefix, repeated n_best times. Batches are decoded shortest
        sources first. Raises UserError if the numbers of prefixes and lines differ.

        Args:
            prefixes: forced beginning of each translation; "" = none.
            first_line: number of the first line, on which samples depend.
            progress: called after each batch with (sentences done, total), without empty lines.
            compiling: context that is entered for the first batch of each shape.
        """
        model, eos = self._model.config, self._source_eos
        lines, more = self._prepare(lines, first_line)
        encoded = encode_lines(
            self._tokenizers, model, self._config, lines, prefixes, source_eos=eos
        )
        translations = [
            empty_translation(self._tokenizers, self._config, ids) for ids in encoded.prefixes
        ]
        if longest := max(map(len, encoded.prefixes), default=0):
            more["prefix"] = padded(encoded.prefixes, len(lines), round_up(longest, PREFIX_LENGTHS))
        if any(encoded.starts):
            more["start"] = np.array(encoded.starts, np.int32)
        params = in_compute_type(self._model, params)
        lengths = list(map(len, encoded.sources))
        done, total = 0, sum(n > 0 for n in lengths)
        shapes = [(name, x.shape[1:]) for name, x in more.items()]

        def search(batch: Batch) -> tuple[Batch, list[tuple[Hypothesis, ...]]]:
            indices, rows = list(batch.indices), batch.rows
            source_BxS = padded([encoded.sources[i] for i in indices], rows, batch.source_length)
            # Rows that fill up the batch: their cap of 1 ends them at once.
            source_BxS[len(indices) :, 0] = EOS
            caps_B, ids_B = np.ones(rows, np.int32), np.zeros(rows, np.int32)
            caps_B[: len(indices)] = [encoded.caps[i] for i in indices]
            ids_B[: len(indices)] = [(first_line + i) % 2**31 for i in indices]
            sentences = Sentences(
                caps_B, more={name: _rows(x[indices], rows) for name, x in more.items()}
            )
            arrays = source_BxS, ids_B, sentences
            with self._first_compiles((batch.shape, *shapes), compiling):
                result = self._decode(
                    params, *jax.tree.map(functools.partial(_put, self._rows), arrays)
                )
                result = jax.device_get(mesh_lib.replicated(result, self._mesh))
            return batch, [self._hypotheses(result, b) for b in range(len(indices))]

        batches = plan_batches(lengths, self._config, mesh_lib.batch_shards(self._mesh))
        with concurrent.futures.ThreadPoolExecutor(self._at_once) as threads:
            several = min(self._at_once, len(batches)) > 1
            for batch, results in (threads.map if several else map)(search, batches):
                for i, hypotheses in zip(batch.indices, results, strict=True):
                    translations[i] = Translation(hypotheses, encoded.cut[i])
                done += len(batch.indices)
                if progress:
                    progress(done, total)
        return translations

    @contextlib.contextmanager
    def _first_compiles(self, shape: Hashable, compiling: Callable) -> Iterator[None]:
        """Decode the first batch of a shape within `compiling()`.

        Other batches of that shape wait.
        """
        lock = self._locks.setdefault(shape, threading.Lock())
        with contextlib.nullcontext() if shape in self._compiled else lock:
            with contextlib.nullcontext() if shape in self._compiled else compiling():
                yield
            self._compiled.add(shape)

    def _decode(self, params: Params, source_BxS, ids_B, sentences: Sentences) -> SearchResult:
        search = self._strategy
        with mesh_lib.use(self._mesh):
            lengths = LENGTHS[0 if source_BxS.shape[1] <= 64 else 1 :]
            if search.draws:
                keys_BxK = random_keys(self._config.seed, ids_B, search.width)
                sentences = dataclasses.replace(sentences, keys_BxK=keys_BxK)
            cache = self._step.start(params, source_BxS, sentences, search.width, lengths[0])
            result = run_search(self._step, params, cache, search, sentences, lengths=lengths)
            return self._step.own_log_probs(params, source_BxS, sentences, result)

    def _hypotheses(self, result: SearchResult, b: int) -> tuple[Hypothesis, ...]:
        hypotheses = []
        for n in range(result.tokens.shape[1]):
            ids = result.tokens[b, n, : result.lengths[b, n]].tolist()
            finished = bool(result.finished[b, n])
            ids = ids[:-1] if finished else ids
            text = line_of(self._tokenizers, ids)
            score, log_prob = float(result.scores[b, n]), float(result.log_probs[b, n])
            hypotheses.append(
                Hypothesis(text, tuple(ids), score, log_prob, bool(ids) and not finished)
            )
        return tuple(hypotheses)


def line_of(tokenizers: TokenizerPair, ids: Sequence[int]) -> str:
    """Return the text of target ids as one line, since a token may write a newline."""
    return tokenizers.target.decode(ids).replace("\n", " ")


def empty_translation(
    tokenizers: TokenizerPair, config: Decode, prefix: Sequence[int]
) -> Translation:
    """Return the translation of an empty line: its prefix, n_best times."""
    text = line_of(tokenizers, list(prefix)) if prefix else ""
    return Translation((Hypothesis(text, tuple(prefix), 0.0, 0.0, False),) * config.n_best)


@dataclasses.dataclass(frozen=True)
class DecodeStep:
    """Model's decode step as a hashable `StepFn`.

    Equal models share compiled searches.
    """

    model: Transformer

    def start(
        self, params: Params, source_BxS: jax.Array, sentences: Sentences, width: int, length: int
    ) -> Cache:
        """Return the cache before the first token, with room for `length` tokens.

        Args:
            width: number of hypotheses per sentence.
        """
        return start_search(self.model, params, source_BxS, width, length)

    def own_log_probs(
        self, params: Params, source_BxS: jax.Array, sentences: Sentences, result: SearchResult
    ) -> SearchResult:
        """Return the result with the model's own log-probabilities.

        A step can have ranked hypotheses by others.
        """
        return result

    def __call__(self, params, tokens_BxK, position, cache):
        logits_BxKxV, cache = self.model.apply(
            {"params": params}, tokens_BxK, position, cache, method="decode_step"
        )
        start_B = cache["sentences"].more.get("start") if "sentences" in cache else None
        if start_B is not None:  # then the probability of the first token is 1
            certain = jnp.where(
                jnp.arange(logits_BxKxV.shape[-1]) == start_B[:, None, None], 0.0, IMPOSSIBLE
            )
            is_start = (position == 0) & (start_B[:, None, None] != PAD)
            logits_BxKxV = jnp.where(is_start, certain, logits_BxKxV)
        return logits_BxKxV, cache


def in_compute_type(model: Transformer, params: Params) -> Params:
    """Return the parameters with all matrices cast to the model's compute type.

    They are cast once instead of in every decoding step. The model rounds each matrix wherever it
    reads it, so nothing else changes.
    """
    if model.dtype == jnp.float32 or all(
        x.dtype == model.dtype for x in jax.tree.leaves(params) if x.ndim > 1
    ):
        return params
    return _cast(model.dtype, params)


@jax.jit(static_argnums=0)
def _cast(dtype: jnp.dtype, params: Params) -> Params:
    return jax.tree.map(lambda x: x.astype(dtype) if x.ndim > 1 else x, params)


@jax.jit(static_argnums=(0, 3, 4))
def start_search(model: Transformer, params, source_BxS, beam_size: int, length: int) -> Cache:
    """Encode the sources and create an empty cache for `length` target tokens.

    See `Transformer.start_cache`.
    """
    return by_rows(
        model.apply({"params": params}, source_BxS, beam_size, length, method="start_cache")
    )


def _put(sharding: jax.sharding.Sharding, x: np.ndarray) -> jax.Array:
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def _rows(x: np.ndarray, count: int) -> np.ndarray:
    """Pad `x` with rows of zeros below to `count` rows."""
    return np.pad(x, [(0, count - len(x))] + [(0, 0)] * (x.ndim - 1))


class Decoder:
    """Translate with a trained model (`evaluation.restore.TrainedModel`).

    Records name all three attributes.

    Args:
        name: decoder, a value of decode.engine.
        version: version of the decoder's package.
        dtype: type of the model's matrices.
    """

    name: str
    version: str
    dtype: str

    @staticmethod
    def check(config: Config) -> None:
        """Raise UserError if the decoder cannot run this config on this machine."""

    def translate(
        self,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        first_line: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Translation]:
        """Translate lines in order, one Translation each; see `Translator.translate`."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.name} {self.version}, {self.dtype}"


def batches_at_once(mesh: jax.sharding.Mesh) -> int:
    """Return the number of batches decoded at once: several on one CPU device, else 1.

    On a CPU, while one batch is planned or multiplies matrices too small for all cores, others
    compute. An accelerator has memory for one batch, and programs on several devices would wait for
    each other.
    """
    return 3 if mesh.size == 1 and jax.default_backend() == "cpu" else 1


class JaxDecoder(Decoder):
    """Beam search, greedy search and sampling on the devices of the model's mesh."""

    name, version = "jax", jax.__version__

    def __init__(self, model: Any):
        self.dtype, self._params = np.dtype(model.model.dtype).name, model.params
        at_once = batches_at_once(model.mesh)
        self._translator = Translator(
            model.model, model.tokenizers, model.mesh, model.config, at_once=at_once
        )

    def translate(self, lines, **options) -> list[Translation]:
        return self._translator.translate(self._params, lines, **options)


def check_decoder(config: Config) -> None:
    """Raise UserError if this config's decoder is not available."""
    DECODERS.load(config.decode.engine).check(config)
