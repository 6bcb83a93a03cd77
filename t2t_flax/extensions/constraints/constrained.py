"""Beam search with required phrases, by dynamic beam allocation.

See Post and Vilar 2018. Candidates are put into banks by how many tokens they still need; the beam
takes the best of each bank in turn. Dimensions as in `search_loop`, and C phrases that an output
contains, each in one of S forms of at most L tokens.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config import Config
from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.beam_search import BeamSearch, BeamState, beam, continuations
from t2t_flax.decoding.search_loop import (
    IMPOSSIBLE,
    SearchResult,
    Sentences,
    forced_tokens,
    log_sum_exp,
    take,
)
from t2t_flax.extensions.constraints.segmentation import begins_word

NO, LATEST, YES = 0, 1, 2
"""Values of `contains`, whether a hypothesis contains a phrase.

LATEST = it ends in the phrase, so it contains it unless the next token continues the word.
"""
_LAST = 2**30


@flax.struct.dataclass
class _State:
    """State of the search.

    Args:
        progress: under "state", `matched` bool [B, K, C, S, L], whether a hypothesis ends in the
            first l + 1 tokens of a form, and `contains` int8 [B, K, C].
    """

    done_B: jax.Array
    last_BxK: jax.Array
    beam: BeamState
    progress: dict[str, dict[str, jax.Array]]


@dataclasses.dataclass(frozen=True)
class ConstrainedBeam:
    """A `Search` like `BeamSearch` whose outputs contain all required phrases.

    An output contains one form of each phrase. `Sentences.more["must"]` holds the forms, int32 [B,
    C, S, L], zero-padded. EOS comes after all phrases; near the cap, only tokens that leave room
    for the rest are allowed.

    Args:
        ordered: whether phrases occur in this order without overlap; otherwise overlaps count.
        begins: a byte for each token, whether it begins a word or is not part of one (EOS
            included). A phrase that another token continues does not count. Empty: all tokens do.
    """

    beam: BeamSearch
    ordered: bool = False
    begins: bytes = b""
    draws = False

    @property
    def width(self) -> int:
        """Hypotheses per sentence."""
        return self.beam.beam_size

    def start(self, sentences: Sentences, length: int) -> _State:
        state = self.beam.start(sentences, length)
        must_BxCxSxL = sentences.more["must"]
        none_BxC = jnp.all(must_BxCxSxL == PAD, axis=(2, 3))
        contains_BxKxC = jnp.repeat(
            jnp.where(none_BxC, YES, NO).astype(jnp.int8)[:, None], self.width, 1
        )
        shape = (*contains_BxKxC.shape, *must_BxCxSxL.shape[2:])
        progress = {"state": {"matched": jnp.zeros(shape, bool), "contains": contains_BxKxC}}
        return _State(state.done_B, state.last_BxK, state, progress)

    def advance(self, sentences: Sentences, position, state: _State, logits_BxKxV):
        K, old = self.width, state.progress["state"]
        must_BxCxSxL, forced_B = sentences.more["must"], forced_tokens(sentences, position)
        log_probs_BxKxM, tokens_BxKxM = self._candidates(must_BxCxSxL, old, logits_BxKxV, forced_B)
        matched, contains = self._after(must_BxCxSxL, old, tokens_BxKxM)
        needed_BxK = tokens_needed(must_BxCxSxL, old["matched"], old["contains"])
        needed_BxKxM = tokens_needed(must_BxCxSxL, matched, contains)
        ends_BxKxM = tokens_BxKxM == EOS
        room_B = (sentences.caps_B - position - 1)[:, None, None]
        allowed_BxKxM = (needed_BxKxM == 0) | ~ends_BxKxM & (
            (needed_BxKxM <= room_B) | (needed_BxKxM < needed_BxK[..., None])
        )
        if forced_B is not None:
            allowed_BxKxM = allowed_BxKxM | (forced_B != PAD)[:, None, None]
        totals_BxKxM = state.beam.alive_log_probs_BxK[..., None] + log_probs_BxKxM
        totals_BxN, tokens_BxN, needed_BxN = (
            x.reshape(len(x), -1)
            for x in (jnp.where(allowed_BxKxM, totals_BxKxM, -jnp.inf), tokens_BxKxM, needed_BxKxM)
        )
        possible_BxN = totals_BxN > -jnp.inf
        index_BxN = jnp.broadcast_to(
            jnp.arange(totals_BxN.shape[1], dtype=jnp.int32), totals_BxN.shape
        )
        # Banks with the fewest needed tokens first; within a bank, best first.
        bank_BxN, order_BxN, index_BxN = jax.lax.sort(
            (jnp.where(possible_BxN, needed_BxN, _LAST), -totals_BxN, index_BxN),
            num_keys=2,
            is_stable=True,
        )
        totals_BxN, tokens_BxN = -order_BxN, take(tokens_BxN, index_BxN)
        rank_BxN = _rank(bank_BxN)
        ends_BxN = (tokens_BxN == EOS) & (totals_BxN > -jnp.inf)
        bound = 2 * K if self.beam.early_stopping == "exact" else K
        ended_BxK, ended_index_BxK = jax.lax.top_k(
            jnp.where(ends_BxN & (rank_BxN < bound), totals_BxN, -jnp.inf), K
        )
        # Take the best of each bank, then the second best, ...
        turn_BxN = jnp.where(
            (tokens_BxN == EOS) | (bank_BxN == _LAST),
            _LAST,
            rank_BxN * _banks(must_BxCxSxL) + bank_BxN,
        )
        turn_BxK, alive_index_BxK = jax.lax.top_k(-turn_BxN, K)
        order_BxK = jnp.argsort(jnp.where(turn_BxK == -_LAST, _LAST, alive_index_BxK), axis=1)
        turn_BxK, alive_index_BxK = take(turn_BxK, order_BxK), take(alive_index_BxK, order_BxK)
        alive_BxK = jnp.where(turn_BxK == -_LAST, -jnp.inf, take(totals_BxN, alive_index_BxK))

        chosen_Bx2K = jnp.concatenate([alive_index_BxK, ended_index_BxK], 1)
        parents_Bx2K = take(index_BxN, chosen_Bx2K) // log_probs_BxKxM.shape[2]
        ended_Bx2K = jnp.concatenate([jnp.full_like(ended_BxK, -jnp.inf), ended_BxK], 1)
        alive = alive_BxK, jnp.broadcast_to(jnp.arange(K), alive_BxK.shape)
        top_B = ends_BxN[:, 0] & (bank_BxN[:, 0] == 0)
        tokens_Bx2K = take(tokens_BxN, chosen_Bx2K)
        new, parents_BxK = self.beam.extend(
            sentences, position, state.beam, parents_Bx2K, tokens_Bx2K, ended_Bx2K, alive, top_B
        )
        of_parents = jax.tree.map(lambda x: take(x, parents_Bx2K[:, :K]), old)
        matched, contains = self._after(must_BxCxSxL, of_parents, new.last_BxK[..., None])
        progress = {"state": {"matched": matched[:, :, 0], "contains": contains[:, :, 0]}}
        return _State(new.done_B, new.last_BxK, new, progress), parents_BxK

    def result(self, sentences: Sentences, state: _State) -> SearchResult:
        return self.beam.result(sentences, state.beam)

    def _candidates(self, must_BxCxSxL, progress, logits_BxKxV, forced_B):
        """Return candidate log-probabilities [B, K, M], -inf if impossible, and ids.

        Candidates are the best tokens and the ones that continue a form.
        """
        log_probs_BxKxC, ids_BxKxC = continuations(logits_BxKxV, 2 * self.width, forced_B)
        next_BxKxA = self._next_of_forms(must_BxCxSxL, progress)
        logits_BxKxA = jnp.take_along_axis(logits_BxKxV, next_BxKxA, axis=2)
        A = next_BxKxA.shape[2]
        known_BxKxA = jnp.any(next_BxKxA[..., None] == ids_BxKxC[:, :, None], axis=3)
        earlier = jnp.arange(A)[:, None] > jnp.arange(A)
        known_BxKxA |= jnp.any((next_BxKxA[..., None] == next_BxKxA[:, :, None]) & earlier, axis=3)
        impossible_BxKxA = known_BxKxA | (next_BxKxA == PAD) | (logits_BxKxA <= IMPOSSIBLE)
        if forced_B is not None:
            impossible_BxKxA |= (forced_B != PAD)[:, None, None]
        added_BxKxA = jnp.where(
            impossible_BxKxA, -jnp.inf, logits_BxKxA - log_sum_exp(logits_BxKxV)
        )
        return jnp.concatenate([log_probs_BxKxC, added_BxKxA], 2), jnp.concatenate(
            [ids_BxKxC, next_BxKxA], 2
        )

    def _next_of_forms(self, must_BxCxSxL, progress):
        """Return the next token of each form of a missing phrase, int32 [B, K, C * S].

        PAD where there is none.
        """
        length_BxKxCxS = longest(progress["matched"])
        L = must_BxCxSxL.shape[3]
        forms_BxKxCxSxL = jnp.broadcast_to(must_BxCxSxL[:, None], (*length_BxKxCxS.shape, L))
        next_BxKxCxS = jnp.take_along_axis(
            forms_BxKxCxSxL, jnp.minimum(length_BxKxCxS, L - 1)[..., None], -1
        )[..., 0]
        contains_BxKxC = progress["contains"]
        wanted_BxKxC = contains_BxKxC == NO
        if self.ordered:
            wanted_BxKxC &= _before(contains_BxKxC != NO)
        return jnp.where(wanted_BxKxC[..., None], next_BxKxCxS, PAD).reshape(
            *contains_BxKxC.shape[:2], -1
        )

    def _after(self, must_BxCxSxL, progress, tokens_BxKxM):
        """Return `matched` and `contains` after one more token.

        Their shapes are [B, K, M, C, S, L] and [B, K, M, C].
        """
        contains_BxKx1xC = progress["contains"][:, :, None]
        begins = np.frombuffer(self.begins, np.uint8) > 0 if self.begins else np.ones(1, bool)
        begins_BxKxM = jnp.asarray(begins)[jnp.minimum(tokens_BxKxM, len(begins) - 1)] | (
            tokens_BxKxM == EOS
        )
        sure_BxKxMxC = (contains_BxKx1xC == YES) | (contains_BxKx1xC == LATEST) & begins_BxKxM[
            ..., None
        ]
        forms_Bx1x1xCxSxL = must_BxCxSxL[:, None, None]
        equal = (tokens_BxKxM[..., None, None, None] == forms_Bx1x1xCxSxL) & (
            forms_Bx1x1xCxSxL != PAD
        )
        shorter = progress["matched"][:, :, None, :, :, :-1]
        shorter = jnp.broadcast_to(shorter, (*equal.shape[:-1], shorter.shape[-1]))
        first = jnp.ones((*equal.shape[:-1], 1), bool)
        if self.ordered:
            first = first & _before(sure_BxKxMxC)[..., None, None]
        matched = equal & jnp.concatenate([first, shorter], -1)
        complete = jnp.pad(forms_Bx1x1xCxSxL, [(0, 0)] * 5 + [(0, 1)])[..., 1:] == PAD
        ends_BxKxMxC = jnp.any(matched & complete, axis=(-1, -2))
        return matched, jnp.where(sure_BxKxMxC, YES, jnp.where(ends_BxKxMxC, LATEST, NO)).astype(
            jnp.int8
        )


def constrained_beam(config: Config, tokenizers: TokenizerPair) -> ConstrainedBeam:
    """Build the search of decode.strategy = constrained_beam."""
    return ConstrainedBeam(
        beam(config, tokenizers),
        config.group("constraints").ordered,
        begins_word(tokenizers.target),
    )


def tokens_needed(must_BxCxSxL, matched, contains) -> jax.Array:
    """Return the fewest tokens that complete all phrases, int32 [B, K, ...].

    It assumes that the phrases do not overlap.

    Args:
        matched: bool [B, K, ..., C, S, L].
        contains: [B, K, ..., C].
    """
    axes = (slice(None), *[None] * (contains.ndim - 2))
    lengths_BxCxS = jnp.sum(must_BxCxSxL != PAD, axis=3)
    shortest_BxC = jnp.min(jnp.where(lengths_BxCxS > 0, lengths_BxCxS, _LAST), axis=2)
    shortest_BxC = jnp.where(shortest_BxC == _LAST, 0, shortest_BxC)
    rest = jnp.where(lengths_BxCxS > 0, lengths_BxCxS, _LAST)[axes] - longest(matched)
    saved = jnp.maximum(shortest_BxC[axes] - jnp.min(rest, axis=-1), 0)
    missing = contains == NO
    return jnp.sum(jnp.where(missing, shortest_BxC[axes], 0), -1) - jnp.max(
        jnp.where(missing, saved, 0), -1
    )


def longest(matched) -> jax.Array:
    """Return how many tokens of each form a hypothesis ends in, [..., S]."""
    return jnp.max(jnp.where(matched, jnp.arange(1, matched.shape[-1] + 1), 0), axis=-1)


def _before(contains: jax.Array) -> jax.Array:
    """Return whether all phrases before each one are contained, bool [..., C]."""
    earlier = jnp.concatenate([jnp.ones_like(contains[..., :1]), contains[..., :-1]], -1)
    return jnp.cumprod(earlier.astype(jnp.int8), axis=-1).astype(bool)


def _rank(bank_BxN: jax.Array) -> jax.Array:
    """Return the position of each candidate in its bank; equal banks are adjacent."""
    index = jnp.arange(bank_BxN.shape[1])
    new_BxN = jnp.pad(bank_BxN[:, 1:] != bank_BxN[:, :-1], [(0, 0), (1, 0)], constant_values=True)
    return index - jax.lax.cummax(jnp.where(new_BxN, index, 0), axis=1)


def _banks(must_BxCxSxL: jax.Array) -> int:
    """Return a number greater than any count of needed tokens."""
    return must_BxCxSxL.shape[1] * must_BxCxSxL.shape[3] + 1
