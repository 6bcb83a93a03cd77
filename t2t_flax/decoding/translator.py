"""Translation of lines of text: one output per line, in order, each independent of the others."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from t2t_flax.config import Decode
from t2t_flax.config.special_tokens import EOS
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.beam_search import BeamOptions, beam_search
from t2t_flax.decoding.sampling import SampleOptions, sample
from t2t_flax.decoding.search_loop import SearchResult
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.models.transformer import Transformer

# Sources are padded to one of these lengths to bound the number of compiled programs.
SOURCE_LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
PREFIX_LENGTHS = (0, 16, 128, 1024)
CACHE_LENGTHS = (32, 64, 128, 256, 512, 1024)


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """score: log-probability divided by the length penalty. log_prob: in nats, EOS included. hit_cap: no EOS."""

    text: str
    tokens: tuple[int, ...]
    score: float
    log_prob: float
    hit_cap: bool


@dataclasses.dataclass(frozen=True)
class Translation:
    """The n-best list of a sentence, best first (samples: by sample index).

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


class Translator:
    """Translates lines with a model on a mesh, its tokenizers and a search."""

    def __init__(
        self,
        model: Transformer,
        tokenizers: TokenizerPair,
        mesh: jax.sharding.Mesh,
        config: Decode,
        *,
        source_eos: bool = True,
    ):
        self._model, self._tokenizers, self._mesh, self._config = model, tokenizers, mesh, config
        self._eos = [EOS] if source_eos else []
        self._rows = config.batch_size * mesh_lib.batch_shards(mesh)
        self._step = DecodeStep(model)
        self._compiled: set[tuple[int, int]] = set()

    def translate(
        self,
        params: Any,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        compiling: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ) -> list[Translation]:
        """One Translation per line. prefixes: the forced beginning of each translation; "" = none.

        An empty line translates to its prefix, repeated n_best times. Batches are decoded shortest sources first;
        progress(sentences done, total) is called after each, not counting empty lines. compiling() is entered for the
        first batch of each shape. Raises UserError if the numbers of prefixes and lines differ.
        """
        if prefixes is not None and len(prefixes) != len(lines):
            raise UserError(
                f"{len(prefixes)} prefixes for {len(lines)} lines: expected one prefix (possibly empty) per line."
            )
        limit = self._max_source_length() - len(self._eos)
        sources = [self._tokenizers.source.encode(line) if line.strip() else [] for line in lines]
        cut = [len(ids) > limit for ids in sources]
        sources = [ids[:limit] + self._eos if ids else [] for ids in sources]
        forced = [self._tokenizers.target.encode(p) if p else [] for p in prefixes or [""] * len(lines)]
        translations = [self._translate_empty(ids) for ids in forced]
        order = sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: len(sources[i]))
        for start in range(0, len(order), self._rows):
            chunk = order[start : start + self._rows]
            batch = [sources[i] for i in chunk], [forced[i] for i in chunk]
            shape = self._shape(*batch)
            with contextlib.nullcontext() if shape in self._compiled else compiling():
                results = self._search(params, *batch, chunk)
            self._compiled.add(shape)
            for i, hypotheses in zip(chunk, results, strict=True):
                translations[i] = Translation(hypotheses, cut[i])
            if progress:
                progress(min(start + self._rows, len(order)), len(order))
        return translations

    def _translate_empty(self, prefix: Sequence[int]) -> Translation:
        """The translation of an empty line: its prefix."""
        text = self._tokenizers.target.decode(list(prefix)) if prefix else ""
        return Translation((Hypothesis(text, tuple(prefix), 0.0, 0.0, False),) * self._config.n_best)

    def _max_source_length(self) -> int:
        learned = self._model.config.position == "learned"
        return min(self._config.max_source_length, self._model.config.max_positions if learned else 2**31)

    @staticmethod
    def _shape(sources, forced) -> tuple[int, int]:
        """(padded source length, padded prefix length) of a batch."""
        return round_up(max(map(len, sources)), SOURCE_LENGTHS), round_up(max(map(len, forced)), PREFIX_LENGTHS)

    def _search(self, params, sources, forced, sentence_ids) -> list[tuple[Hypothesis, ...]]:
        c = self._config
        length, prefix_length = self._shape(sources, forced)
        source_BxS = padded(sources, self._rows, length)
        source_BxS[len(sources) :, 0] = EOS  # rows that fill up the batch: their cap of 1 ends them at once
        caps = [
            math.floor(c.max_length_ratio * len(s)) + c.max_length_offset + len(f)
            for s, f in zip(sources, forced, strict=True)
        ]
        if self._model.config.position == "learned":
            caps = [min(cap, self._model.config.max_positions) for cap in caps]
        caps_B = np.array([max(1, cap) for cap in caps] + [1] * (self._rows - len(sources)), np.int32)
        prefix_BxP = padded(forced, self._rows, prefix_length)
        ids_B = np.array(list(sentence_ids) + [0] * (self._rows - len(sources)), np.int32)
        rows = mesh_lib.named(self._mesh, mesh_lib.ROWS)
        put = lambda x: jax.make_array_from_callback(x.shape, rows, lambda index: x[index])  # noqa: E731
        with mesh_lib.use(self._mesh):
            width = {"beam": c.beam_size, "greedy": 1, "sample": c.n_best}[c.strategy]
            cache = start_search(self._model, params, put(source_BxS), width, CACHE_LENGTHS[0])
            search_args = dict(caps_B=put(caps_B), prefix_BxP=put(prefix_BxP), lengths=CACHE_LENGTHS)
            if c.strategy == "beam":
                options = BeamOptions(c.beam_size, c.alpha, c.n_best, c.length_penalty, c.early_stopping)
                result = beam_search(self._step, params, cache, options, **search_args)
            else:
                temperature = c.temperature if c.strategy == "sample" else 0.0
                options = SampleOptions(width, temperature, c.top_k, c.top_p, c.seed)
                result = sample(self._step, params, cache, options, sentence_ids_B=put(ids_B), **search_args)
            result = jax.device_get(mesh_lib.replicated(result, self._mesh))
        return [self._hypotheses(result, b) for b in range(len(sources))]

    def _hypotheses(self, result: SearchResult, b: int) -> tuple[Hypothesis, ...]:
        hypotheses = []
        for n in range(result.tokens.shape[1]):
            ids = result.tokens[b, n, : result.lengths[b, n]].tolist()
            finished = bool(result.finished[b, n])
            ids = ids[:-1] if finished else ids
            text = self._tokenizers.target.decode(ids)
            score, log_prob = float(result.scores[b, n]), float(result.log_probs[b, n])
            hypotheses.append(Hypothesis(text, tuple(ids), score, log_prob, not finished))
        return tuple(hypotheses)


@dataclasses.dataclass(frozen=True)
class DecodeStep:
    """The model's decode step as a hashable function: equal models share compiled searches."""

    model: Transformer

    def __call__(self, params, tokens_BxK, position, cache):
        return self.model.apply({"params": params}, tokens_BxK, position, cache, method="decode_step")


@jax.jit(static_argnums=(0, 3, 4))
def start_search(model: Transformer, params, source_BxS, beam_size: int, length: int) -> dict[str, Any]:
    """Encodes the sources and creates an empty cache for `length` target tokens; see `Transformer.start_cache`."""
    cache = model.apply({"params": params}, source_BxS, beam_size, length, method="start_cache")
    return jax.tree.map(_by_rows, cache)


def _by_rows(x: jax.Array) -> jax.Array:
    """Shards by sentences. Without it XLA replicates the empty cache, which depends on no sharded input."""
    free = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*mesh_lib.ROWS, *free))


def round_up(n: int, choices: Sequence[int]) -> int:
    """The first of `choices` that is at least n; beyond them, the next multiple of 256."""
    return next((c for c in choices if c >= n), 256 * math.ceil(n / 256))


def padded(rows: Sequence[Sequence[int]], count: int, length: int) -> np.ndarray:
    """int32 [count, length]: `rows` padded with zeros on the right and below."""
    out = np.zeros((count, length), np.int32)
    for i, ids in enumerate(rows):
        out[i, : len(ids)] = ids
    return out
