"""Beam search with a length penalty (section 6.1).

Unfinished ("alive") and finished hypotheses are separate lists of K each. All alive hypotheses have
the same length, so the penalty never reorders them; it ranks the finished ones and decides when to
stop.
"""

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp

from t2t_flax.config import Config
from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.search_loop import (
    IMPOSSIBLE,
    SearchResult,
    Sentences,
    forced_tokens,
    log_sum_exp,
    take,
    top_k,
)


def length_penalty(length, alpha: float, kind: str = "gnmt"):
    """Return the length penalty for `length` L, EOS included.

    Args:
        kind: "gnmt", ((5 + L) / 6)^alpha of Wu et al. 2016; "power", L^alpha; or "none", 1.
    """
    return {"gnmt": (5.0 + length) / 6.0, "power": 1.0 * length, "none": 1.0 + 0.0 * length}[
        kind
    ] ** alpha


@flax.struct.dataclass
class BeamState:
    """K alive and K finished hypotheses of each sentence, both best first."""

    done_B: jax.Array
    top_finished_B: jax.Array
    last_BxK: jax.Array
    alive_BxKxT: jax.Array
    alive_log_probs_BxK: jax.Array
    finished_BxKxT: jax.Array
    finished_scores_BxK: jax.Array
    finished_log_probs_BxK: jax.Array
    finished_lengths_BxK: jax.Array


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """`Search` for the n-best list of each sentence.

    The best score is first, and unfinished hypotheses follow all finished ones. A sentence with
    fewer than N finished hypotheses at its cap is filled up with its best alive ones, scored at
    that length. Ties go to the older hypothesis, then the lower beam, then the lower token id.

    Args:
        beam_size: beam width K.
        alpha: exponent of the penalty.
        n_best: number of returned hypotheses N, at most K.
        length_penalty: kind of the penalty, see the function `length_penalty`.
        early_stopping: when to stop. "exact": once the result can no longer change. "beam_full":
            once K hypotheses have finished. "top_finished": once N have finished and the likeliest
            candidate was among them. In the last two, as in the toolkits they come from, only the
            first K candidates of a step can finish.
    """

    beam_size: int = 4
    alpha: float = 0.6
    n_best: int = 1
    length_penalty: str = "gnmt"
    early_stopping: str = "exact"
    draws = False

    @property
    def width(self) -> int:
        """Number of hypotheses per sentence."""
        return self.beam_size

    def start(self, sentences: Sentences, length: int) -> BeamState:
        shape = (len(sentences.caps_B), self.beam_size)
        return BeamState(
            done_B=sentences.caps_B < 1,
            top_finished_B=jnp.zeros(shape[:1], bool),
            last_BxK=jnp.zeros(shape, jnp.int32),
            alive_BxKxT=jnp.zeros((*shape, length), jnp.int32),
            # Only one hypothesis at first; otherwise all beams would be identical.
            alive_log_probs_BxK=jnp.full(shape, -jnp.inf).at[:, 0].set(0.0),
            finished_BxKxT=jnp.zeros((*shape, length), jnp.int32),
            finished_scores_BxK=jnp.full(shape, -jnp.inf),
            finished_log_probs_BxK=jnp.full(shape, -jnp.inf),
            finished_lengths_BxK=jnp.zeros(shape, jnp.int32),
        )

    def advance(self, sentences: Sentences, position, state: BeamState, logits_BxKxV):
        K = self.beam_size
        log_probs_BxKxC, tokens_BxKxC = continuations(
            logits_BxKxV, 2 * K, forced_tokens(sentences, position)
        )
        totals_BxKxC = state.alive_log_probs_BxK[..., None] + log_probs_BxKxC
        # At most K of the 2K candidates end (one per beam), so K always continue.
        log_probs_Bx2K, flat_Bx2K = jax.lax.top_k(
            totals_BxKxC.reshape(len(totals_BxKxC), -1), 2 * K
        )
        parents_Bx2K = flat_Bx2K // totals_BxKxC.shape[2]
        tokens_Bx2K = take(tokens_BxKxC.reshape(len(tokens_BxKxC), -1), flat_Bx2K)
        ends_Bx2K = tokens_Bx2K == EOS
        if self.early_stopping != "exact":
            ends_Bx2K = ends_Bx2K & (jnp.arange(2 * K) < K)
        alive_Bx2K = jnp.where(tokens_Bx2K == EOS, -jnp.inf, log_probs_Bx2K)
        alive = jax.lax.top_k(alive_Bx2K, K)
        top_B = ends_Bx2K[:, 0] & (log_probs_Bx2K[:, 0] > -jnp.inf)
        ended_Bx2K = jnp.where(ends_Bx2K, log_probs_Bx2K, -jnp.inf)
        return self.extend(
            sentences, position, state, parents_Bx2K, tokens_Bx2K, ended_Bx2K, alive, top_B
        )

    def extend(
        self,
        sentences: Sentences,
        position,
        state: BeamState,
        parents_BxN,
        tokens_BxN,
        ended_BxN,
        alive,
        top_B,
    ):
        """Return the result of `advance` for N candidates, each a token after its parent.

        Args:
            parents_BxN: index of each candidate's parent hypothesis.
            tokens_BxN: token of each candidate.
            ended_BxN: log-probability of each candidate that finishes, -inf for the others.
            alive: log-probabilities [B, K] of the candidates that continue, -inf for none, and
                their indices among the candidates.
            top_B: whether the likeliest candidate finishes.
        """
        K, length = self.beam_size, position + 1
        sequences_BxNxT = take(state.alive_BxKxT, parents_BxN).at[:, :, position].set(tokens_BxN)
        penalty = length_penalty(length, self.alpha, self.length_penalty)
        scores_BxKN = jnp.concatenate([state.finished_scores_BxK, ended_BxN / penalty], 1)
        finished_scores_BxK, best_BxK = jax.lax.top_k(scores_BxKN, K)
        alive_log_probs_BxK, alive_index_BxK = alive

        def finished(old, new):
            return take(jnp.concatenate([old, new], 1), best_BxK)

        top_finished_B, best_alive_B = (
            state.top_finished_B | top_B,
            jnp.max(alive_log_probs_BxK, axis=1),
        )
        if self.early_stopping == "beam_full":
            enough_B = finished_scores_BxK[:, -1] > -jnp.inf
        elif self.early_stopping == "top_finished":
            enough_B = top_finished_B & (finished_scores_BxK[:, self.n_best - 1] > -jnp.inf)
        else:
            best_B = self._best_future(best_alive_B, length + 1, sentences.caps_B)
            enough_B = finished_scores_BxK[:, self.n_best - 1] > best_B
        no_alive_B = best_alive_B == -jnp.inf
        new = BeamState(
            done_B=enough_B | no_alive_B | (length >= sentences.caps_B),
            top_finished_B=top_finished_B,
            last_BxK=take(tokens_BxN, alive_index_BxK),
            alive_BxKxT=take(sequences_BxNxT, alive_index_BxK),
            alive_log_probs_BxK=alive_log_probs_BxK,
            finished_BxKxT=finished(state.finished_BxKxT, sequences_BxNxT),
            finished_scores_BxK=finished_scores_BxK,
            finished_log_probs_BxK=finished(state.finished_log_probs_BxK, ended_BxN),
            finished_lengths_BxK=finished(
                state.finished_lengths_BxK, jnp.full_like(tokens_BxN, length)
            ),
        )
        return new, None if K == 1 else take(parents_BxN, alive_index_BxK)

    def _best_future(self, log_prob_B, next_length, caps_B):
        """Return an upper bound on the score of any continuation of an alive hypothesis.

        Log-probabilities only decrease. Being negative, they score best under the largest remaining
        penalty: at the cap, or at the next length if alpha is negative.
        """
        penalty = functools.partial(length_penalty, alpha=self.alpha, kind=self.length_penalty)
        return log_prob_B / jnp.maximum(penalty(caps_B), penalty(next_length))

    def result(self, sentences: Sentences, state: BeamState) -> SearchResult:
        caps_B = sentences.caps_B
        # Alive hypotheses are returned only for sentences that reached their cap, so their length
        # is the cap.
        alive_lengths_BxK = jnp.where(state.alive_log_probs_BxK == -jnp.inf, 0, caps_B[:, None])
        penalty_B = length_penalty(caps_B, self.alpha, self.length_penalty)
        alive_scores_BxK = state.alive_log_probs_BxK / penalty_B[:, None]
        finished_BxK = state.finished_scores_BxK > -jnp.inf
        # Finished hypotheses first, then alive ones, each in order.
        count_Bx1, rank_N = jnp.sum(finished_BxK, axis=1, keepdims=True), jnp.arange(self.n_best)
        best_BxN = jnp.where(rank_N < count_Bx1, rank_N, self.beam_size + rank_N - count_Bx1)

        def pick(finished, alive):
            return take(jnp.concatenate([finished, alive], 1), best_BxN)

        lengths_BxN = pick(
            jnp.where(finished_BxK, state.finished_lengths_BxK, 0), alive_lengths_BxK
        )
        tokens_BxNxT = pick(state.finished_BxKxT, state.alive_BxKxT)
        return SearchResult(
            tokens=jnp.where(
                jnp.arange(tokens_BxNxT.shape[2]) < lengths_BxN[..., None], tokens_BxNxT, PAD
            ),
            scores=pick(state.finished_scores_BxK, alive_scores_BxK),
            log_probs=pick(state.finished_log_probs_BxK, state.alive_log_probs_BxK),
            lengths=lengths_BxN,
            finished=rank_N < count_Bx1,
        )


def beam(config: Config, tokenizers: TokenizerPair) -> BeamSearch:
    """Build the search of decode.strategy = beam."""
    c = config.decode
    return BeamSearch(c.beam_size, c.alpha, c.n_best, c.length_penalty, c.early_stopping)


def continuations(logits_BxKxV: jax.Array, count: int, forced_B: jax.Array | None):
    """Return log-probabilities [B, K, C] and ids of the best tokens of each beam.

    There are `count` tokens, or all. Impossible tokens have log-probability -inf.
    """
    width = min(count + 1, logits_BxKxV.shape[-1])  # one more, because PAD may be among them
    best_BxKxC, ids_BxKxC = top_k(logits_BxKxV, width)
    best_BxKxC = jnp.where((ids_BxKxC == PAD) | (best_BxKxC <= IMPOSSIBLE), -jnp.inf, best_BxKxC)
    if forced_B is not None:
        logit_BxK = jnp.take_along_axis(logits_BxKxV, forced_B[:, None, None], axis=2)
        only_BxKxC = jnp.where(jnp.arange(width) == 0, logit_BxK, -jnp.inf)
        is_forced = forced_B[:, None, None] != PAD
        best_BxKxC = jnp.where(is_forced, only_BxKxC, best_BxKxC)
        ids_BxKxC = jnp.where(is_forced, forced_B[:, None, None], ids_BxKxC)
    return best_BxKxC - log_sum_exp(logits_BxKxV), ids_BxKxC
