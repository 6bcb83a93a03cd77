"""Translation with CTranslate2 in place of the JAX search, where both follow the same rules.

`search_difference` says where they do not. Within these settings results are equal up to rounding. Three things make them so:
padding is a second end token for CTranslate2, so that it stays in the softmax; a sentence is accepted only if its search
provably took the same course; and the others are searched for again, up to their own cap, or left to the JAX search.
"""

import collections
import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from t2t_flax.config import Decode, Model
from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.batches import EncodedLines, encode_lines, plan_batches
from t2t_flax.decoding.translator import Hypothesis, Translation, empty_translation
from t2t_flax.extensions.interop.ctranslate2_export import POSITIONS

log = logging.getLogger("t2t_flax")
JaxTranslate = Callable[[Sequence[str], Sequence[str] | None], list[Translation]]
"""(lines, their prefixes) -> one Translation for each, by the JAX search."""
_ALMOST_ZERO = 1e-30  # divides by 1 as 0 does, for which CTranslate2 ends searches by another rule
_END, _PADDING = str(EOS), str(PAD)


def search_difference(config: Decode) -> str | None:
    """The rule in which CTranslate2's search differs from the config's, naming the keys that make both equal; None if there
    is none.
    """
    if config.strategy == "sample":
        return "decode.strategy = sample draws JAX's random numbers; set decode.strategy = beam or greedy"
    if config.strategy == "greedy":
        return None
    keys = []
    if config.early_stopping == "exact" or config.early_stopping == "top_finished" and config.beam_size > 1:
        keys.append("decode.early_stopping = beam_full")
    if config.length_penalty == "gnmt" and config.alpha and config.beam_size > 1:
        keys.append("decode.length_penalty = power (or none)")
    if not keys:
        return None
    return (
        "CTranslate2 divides log-probabilities by length^alpha and ends a search once beam_size hypotheses have finished; set "
        + " and ".join(keys)
    )


def length_difference(config: Decode, model: Model) -> str | None:
    """Why outputs of this config may be too long for the exported model, naming the keys; None if they are not."""
    longest = math.floor(config.max_length_ratio * config.max_source_length) + config.max_length_offset
    if model.position == "learned" or max(longest, config.max_source_length) <= POSITIONS:
        return None
    return (
        f"the exported model has {POSITIONS:,} positions; lower decode.max_source_length, decode.max_length_ratio or "
        "decode.max_length_offset"
    )


@dataclasses.dataclass(frozen=True)
class _Job:
    """Sentences that are decoded together. at_cap: all have the cap `cap` as their own, and reach it."""

    indices: tuple[int, ...]
    cap: int
    at_cap: bool = False


class CTranslate2Translator:
    """Translates lines with an exported model (`ctranslate2.Translator`, its tokens being ids as text)."""

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
        self._exported, self._tokenizers, self._model, self._config = exported, tokenizers, model, config
        self._jax_translate, self._source_eos = jax_translate, source_eos
        self._beams = 1 if config.strategy == "greedy" else config.beam_size
        self._positions = model.max_positions if model.position == "learned" else POSITIONS

    def translate(
        self,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        first_line: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Translation]:
        """As `decoding.translator.Translator.translate`, of whose results these are the same."""
        eos = self._source_eos
        encoded = encode_lines(self._tokenizers, self._model, self._config, lines, prefixes, source_eos=eos)
        translations = [empty_translation(self._tokenizers, self._config, ids) for ids in encoded.prefixes]
        total = sum(map(bool, encoded.sources))
        lengths = [len(ids) if self._can_decode(encoded, i) else 0 for i, ids in enumerate(encoded.sources)]
        left = [i for i, ids in enumerate(encoded.sources) if ids and not lengths[i]]
        done = 0
        jobs = collections.deque(
            _Job(batch.indices, max(encoded.caps[i] for i in batch.indices))
            for batch in plan_batches(lengths, self._config)
        )
        running: collections.deque[tuple[_Job, list]] = collections.deque()
        while jobs or running:
            while jobs and len(running) < 2 * self._exported.num_translators:
                running.append((jobs[0], self._start(jobs.popleft(), encoded)))
            job, futures = running.popleft()
            again: dict[int, list[int]] = {}
            for i, future in zip(job.indices, futures, strict=True):
                hypotheses = self._hypotheses(future.result(), encoded, i, job)
                if hypotheses is not None:
                    translations[i] = Translation(hypotheses, encoded.cut[i])
                    done += 1
                elif job.at_cap:
                    left.append(i)
                else:
                    again.setdefault(encoded.caps[i], []).append(i)
            jobs.extend(_Job(tuple(indices), cap, at_cap=True) for cap, indices in again.items())
            if progress:
                progress(done, total)
        if left:
            log.info("%d of %d lines are decoded with JAX: CTranslate2 has other rules for them", len(left), total)
            chosen = None if prefixes is None else [prefixes[i] for i in left]
            for i, translation in zip(left, self._jax_translate([lines[i] for i in left], chosen), strict=True):
                translations[i] = translation
            if progress:
                progress(total, total)
        return translations

    def _can_decode(self, encoded: EncodedLines, i: int) -> bool:
        """Whether the rules are the same for a sentence. CTranslate2 counts a forced prefix as certain, so that it ranks
        several hypotheses otherwise, and lets only the best of them end right after it.
        """
        fits = max(len(encoded.sources[i]), encoded.caps[i]) <= self._positions
        return fits and (self._beams == 1 or not encoded.prefixes[i])

    def _start(self, job: _Job, encoded: EncodedLines) -> list:
        """Queues a search; returns a future for each sentence."""
        c, prefixes = self._config, [encoded.prefixes[i] for i in job.indices]
        penalty = c.alpha if c.length_penalty == "power" else 0.0
        hypotheses = 1 if self._beams == 1 else self._beams * (2 if job.at_cap else 1)
        return self._exported.translate_batch(
            [_words(encoded.sources[i]) for i in job.indices],
            [_words(ids) for ids in prefixes] if any(prefixes) else None,
            asynchronous=True,
            beam_size=self._beams,
            patience=2 if job.at_cap else 1,  # so that all hypotheses of a search that reaches its cap are returned
            num_hypotheses=hypotheses,
            length_penalty=(penalty or _ALMOST_ZERO) if self._beams > 1 else 0.0,
            max_decoding_length=job.cap,
            min_decoding_length=0,
            max_input_length=0,
            end_token=[_END, _PADDING],
            return_end_token=True,
            return_scores=True,
        )

    def _hypotheses(self, result: Any, encoded: EncodedLines, i: int, job: _Job) -> tuple[Hypothesis, ...] | None:
        """The n-best list; None if the search may have taken another course than ours.

        A search that ends before its cap returns the K best of its hypotheses. One of them at least is of its last step: so
        if none is longer than the sentence's own cap, neither was the search, and if all end in EOS, K had finished. A search
        of the job `at_cap` goes on until 2 K have finished: if it returns fewer, it reached the cap and these are all.
        """
        found = [(tuple(map(int, words)), score) for words, score in zip(result.hypotheses, result.scores, strict=True)]
        cap, beams, best = encoded.caps[i], self._beams, found[0][0]
        if any(PAD in ids or EOS in ids[:-1] or len(ids) > cap for ids, _ in found):
            return None
        ended = [pair for pair in found if pair[0][-1] == EOS]
        if beams == 1:
            if not ended and len(best) < cap:
                return None
            if encoded.prefixes[i]:  # CTranslate2 counts the forced tokens as certain
                found = [(best, self._log_probability(encoded.sources[i], best))]
        elif not job.at_cap:
            if len(ended) < len(found):
                return None
        elif len(found) == 2 * beams:
            return None
        elif len(ended) >= beams:
            last = sorted(len(ids) for ids, _ in ended)[beams - 1]
            found = [pair for pair in ended if len(pair[0]) <= last]
        else:
            found = ended + [pair for pair in found if pair[0][-1] != EOS]
        return tuple(self._hypothesis(ids, score) for ids, score in found[: self._config.n_best])

    def _hypothesis(self, ids: tuple[int, ...], score: float) -> Hypothesis:
        """score: log-probability divided by length^alpha with several beams and penalty `power`, else the log-probability."""
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
        return Hypothesis(self._tokenizers.target.decode(list(tokens)), tokens, score, log_prob, not finished)

    def _log_probability(self, source: list[int], ids: tuple[int, ...]) -> float:
        """Of all tokens, prefix and EOS included. Scoring appends an EOS of its own."""
        target = ids[:-1] if ids[-1] == EOS else ids
        (result,) = self._exported.score_batch([_words(source)], [_words(target)], max_input_length=0)
        return math.fsum(result.log_probs[: len(ids)])


def _words(ids: Sequence[int]) -> list[str]:
    return [str(i) for i in ids]
