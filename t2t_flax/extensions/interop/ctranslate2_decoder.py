"""CTranslate2 on the CPU as a decoder (decode.engine = ctranslate2).

It applies to settings for which it follows the same rules as the JAX search; `search_difference`
names the ones that differ. Within these settings results are equal up to rounding, for three
reasons: padding is a second end token for CTranslate2, so that it stays in the softmax; a sentence
is accepted only if its search provably took the same course; and all others are left to the JAX
search.
"""

import collections
import dataclasses
import logging
import math
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from t2t_flax.config import Config, Decode, Model
from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.batches import EncodedLines, encode_lines, plan_batches, step_changes
from t2t_flax.decoding.translator import (
    Decoder,
    Hypothesis,
    JaxDecoder,
    Translation,
    empty_translation,
    line_of,
)
from t2t_flax.errors import UserError, install_hint
from t2t_flax.extensions.interop import CTranslate2
from t2t_flax.extensions.interop.ctranslate2_export import (
    POSITIONS,
    check_exportable,
    position_limit,
    write_ctranslate2,
)

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel

log = logging.getLogger("t2t_flax")
JaxTranslate = Callable[[Sequence[str], Sequence[str] | None], list[Translation]]
"""Maps (lines, their prefixes) to one Translation each, by the JAX search."""
_ALMOST_ZERO = 1e-30  # divides by 1 like 0, but 0 changes the rule that ends a search
_END, _PADDING = str(EOS), str(PAD)


@dataclasses.dataclass(eq=False)
class _Exported:
    """A model in CTranslate2.

    Args:
        params: exported parameters, kept in memory as long as this object.
    """

    params: Any
    translator: Any


_OPEN: weakref.WeakValueDictionary[tuple[int, str], _Exported] = weakref.WeakValueDictionary()
"""Models in memory by the identity of their parameters and the type.

Decoders with the same parameters share them.
"""


def _obstacle(config: Config) -> str | None:
    if different := search_difference(config.decode) or length_difference(
        config.decode, config.model
    ):
        return different
    if rules := step_changes(config):
        return (
            f"the rules of {' and '.join(rules)} on output tokens are those of the JAX search;"
            " decode with it, or without them"
        )
    try:
        check_exportable(config.model)
    except UserError as error:
        return str(error).rstrip(".")
    if installed_version() is None:
        return f"the package ctranslate2 is not installed: {install_hint('ctranslate2')}"
    return None


def installed_version() -> str | None:
    """Return the version of the package ctranslate2; None if it is not installed."""
    try:
        import ctranslate2  # an installed package may still fail to load

        return ctranslate2.__version__
    except ImportError:
        return None


def _export(run: "TrainedModel", kind: str) -> _Exported:
    """Return the run's model in CTranslate2.

    It runs a search on each core of this process, each with one thread, which is faster than
    several threads for a search. Results do not depend on the number of cores.
    """
    import ctranslate2

    if opened := _OPEN.get((id(run.params), kind)):
        return opened
    vocabularies = tuple(
        [str(i) for i in range(side.vocab_size)]
        for side in (run.tokenizers.source, run.tokenizers.target)
    )
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    with tempfile.TemporaryDirectory(prefix="t2t-flax-ctranslate2-") as folder:
        # EOS is among the ids, so no `source_eos`.
        write_ctranslate2(
            Path(folder),
            run.config.model,
            run.params,
            vocabularies,
            source_eos=False,
            quantization=kind,
        )
        translator = ctranslate2.Translator(
            folder, compute_type=kind, inter_threads=cores, intra_threads=1
        )
    _OPEN[id(run.params), kind] = opened = _Exported(run.params, translator)
    return opened


def search_difference(config: Decode) -> str | None:
    """Return the rule in which CTranslate2's search differs, or None.

    The text names the keys that make both equal.
    """
    if config.strategy == "sample":
        return (
            "decode.strategy = sample draws JAX's random numbers; set decode.strategy = beam or"
            " greedy"
        )
    if config.strategy == "greedy":
        return None
    if config.strategy != "beam":
        return (
            f"decode.strategy = {config.strategy} is a search of JAX; set decode.strategy = beam or"
            " greedy"
        )
    keys = []
    if (
        config.early_stopping == "exact"
        or config.early_stopping == "top_finished"
        and config.beam_size > 1
    ):
        keys.append("decode.early_stopping = beam_full")
    if config.length_penalty == "gnmt" and config.alpha and config.beam_size > 1:
        keys.append("decode.length_penalty = power (or none)")
    if not keys:
        return None
    return (
        "CTranslate2 divides log-probabilities by length^alpha and ends a search once beam_size"
        " hypotheses have finished; set " + " and ".join(keys)
    )


def length_difference(config: Decode, model: Model) -> str | None:
    """Return why outputs may be too long for the exported model, or None.

    The text names the keys.
    """
    longest = (
        math.floor(config.max_length_ratio * config.max_source_length) + config.max_length_offset
    )
    if model.position == "learned" or max(longest, config.max_source_length) <= POSITIONS:
        return None
    return (
        f"the exported model has {POSITIONS:,} positions; lower decode.max_source_length,"
        " decode.max_length_ratio or decode.max_length_offset"
    )


class CTranslate2Translator:
    """Translator of lines with an exported model (`ctranslate2.Translator`).

    Its tokens are ids as text.
    """

    def __init__(
        self,
        exported: Any,
        tokenizers: TokenizerPair,
        model: Model,
        config: Decode,
        jax_translate: JaxTranslate,
        *,
        source_eos: bool = True,
    ):
        self._exported, self._tokenizers, self._model, self._config = (
            exported,
            tokenizers,
            model,
            config,
        )
        self._jax_translate, self._source_eos = jax_translate, source_eos
        self._beams = 1 if config.strategy == "greedy" else config.beam_size
        self._positions = position_limit(model)

    def translate(
        self,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        first_line: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Translation]:
        """Translate with the same results as `decoding.translator.Translator.translate`."""
        eos = self._source_eos
        encoded = encode_lines(
            self._tokenizers, self._model, self._config, lines, prefixes, source_eos=eos
        )
        translations = [
            empty_translation(self._tokenizers, self._config, ids) for ids in encoded.prefixes
        ]
        total = sum(map(bool, encoded.sources))
        lengths = [
            len(ids) if self._can_decode(encoded, i) else 0 for i, ids in enumerate(encoded.sources)
        ]
        left = [i for i, ids in enumerate(encoded.sources) if ids and not lengths[i]]
        done, batches = 0, collections.deque(plan_batches(lengths, self._config))
        running: collections.deque[tuple[tuple[int, ...], list]] = collections.deque()
        while batches or running:
            while batches and len(running) < 2 * self._exported.num_translators:
                indices = batches.popleft().indices
                running.append((indices, self._start(indices, encoded)))
            indices, futures = running.popleft()
            for i, future in zip(indices, futures, strict=True):
                hypotheses = self._hypotheses(future.result(), encoded, i)
                if hypotheses is None:
                    left.append(i)
                else:
                    translations[i] = Translation(hypotheses, encoded.cut[i])
                    done += 1
            if progress:
                progress(done, total)
        if left:
            log.info(
                "%d of %d lines are decoded with JAX: CTranslate2 has other rules for them",
                len(left),
                total,
            )
            chosen = None if prefixes is None else [prefixes[i] for i in left]
            for i, translation in zip(
                left, self._jax_translate([lines[i] for i in left], chosen), strict=True
            ):
                translations[i] = translation
            if progress:
                progress(total, total)
        return translations

    def _can_decode(self, encoded: EncodedLines, i: int) -> bool:
        """Return True if the rules are the same for a sentence.

        CTranslate2 counts a forced prefix as certain, as this project only `EncodedLines.starts`.
        """
        return (
            len(encoded.prefixes[i]) == (encoded.starts[i] != PAD)
            and max(len(encoded.sources[i]), encoded.caps[i]) <= self._positions
        )

    def _start(self, indices: tuple[int, ...], encoded: EncodedLines) -> list:
        """Queue a search; return a future for each sentence."""
        c = self._config
        penalty = c.alpha if c.length_penalty == "power" else 0.0
        prefixes = [_words(encoded.prefixes[i]) for i in indices]
        return self._exported.translate_batch(
            [_words(encoded.sources[i]) for i in indices],
            target_prefix=prefixes if any(prefixes) else None,
            asynchronous=True,
            beam_size=self._beams,
            num_hypotheses=self._beams,
            length_penalty=(penalty or _ALMOST_ZERO) if self._beams > 1 else 0.0,
            max_decoding_length=max(encoded.caps[i] for i in indices),
            min_decoding_length=0,
            max_input_length=0,
            end_token=[_END, _PADDING],
            return_end_token=True,
            return_scores=True,
        )

    def _hypotheses(
        self, result: Any, encoded: EncodedLines, i: int
    ) -> tuple[Hypothesis, ...] | None:
        """Return the n-best list, or None.

        None if the search may have taken another course than ours. A search that ends before its
        cap returns the K best of its hypotheses. At least one of them comes from its last step. So
        if none is longer than the sentence's cap, neither was the search, and if all end in EOS, K
        had finished.
        """
        found = [
            (tuple(map(int, words)), score)
            for words, score in zip(result.hypotheses, result.scores, strict=True)
        ]
        cap, beams, best = encoded.caps[i], self._beams, found[0][0]
        if any(PAD in ids or EOS in ids[:-1] or len(ids) > cap for ids, _ in found):
            return None
        ended = [pair for pair in found if pair[0][-1] == EOS]
        if beams == 1:
            if not ended and len(best) < cap:
                return None
        elif len(ended) < len(found):
            return None
        return tuple(self._hypothesis(ids, score) for ids, score in found[: self._config.n_best])

    def _hypothesis(self, ids: tuple[int, ...], score: float) -> Hypothesis:
        """Return a hypothesis.

        Args:
            score: log-probability divided by length^alpha with several beams and penalty `power`,
                else the log-probability.
        """
        c, length = self._config, len(ids)
        if self._beams > 1:
            log_prob = score * length**c.alpha if c.length_penalty == "power" else score
        else:
            log_prob = score
            if c.strategy == "beam":
                base = {"gnmt": (5 + length) / 6, "power": length, "none": 1.0}[c.length_penalty]
                score = log_prob / base**c.alpha
        finished = ids[-1] == EOS
        tokens = ids[:-1] if finished else ids
        return Hypothesis(line_of(self._tokenizers, tokens), tokens, score, log_prob, not finished)


def _words(ids: Sequence[int]) -> list[str]:
    return [str(i) for i in ids]


class CTranslate2Decoder(CTranslate2Translator, Decoder):
    """CTranslate2 with a model's parameters.

    Raises UserError if they are divided among several processes.
    """

    name = "ctranslate2"

    def __init__(self, model: "TrainedModel"):
        if any(device.process_index != jax.process_index() for device in model.mesh.devices.flat):
            raise UserError(
                "config.decode.engine = ctranslate2: the parameters are divided among several"
                " processes; use one."
            )
        config = model.config
        self.version, self.dtype = installed_version() or "", CTranslate2.of(config).quantization
        self._model_in_memory, jax_translate = (
            _export(model, self.dtype),
            JaxDecoder(model).translate,
        )
        super().__init__(
            self._model_in_memory.translator,
            model.tokenizers,
            config.model,
            config.decode,
            lambda lines, prefixes: jax_translate(lines, prefixes=prefixes),
            source_eos=config.data.source_eos,
        )

    @staticmethod
    def check(config: Config) -> None:
        """Raise UserError unless CTranslate2 decodes for this config as the JAX search does."""
        if reason := _obstacle(config):
            raise UserError(f"config.decode.engine = ctranslate2: {reason}.")
