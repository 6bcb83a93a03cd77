"""Diverse beam search (Vijayakumar et al. 2016): groups of beams, each of which avoids the tokens of the groups before it."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from t2t_flax.config import Config
from t2t_flax.config.data_keys import EOS
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.beam_search import BeamSearch, BeamState, continuations
from t2t_flax.decoding.search_loop import SearchResult, Sentences, forced_tokens, take


@flax.struct.dataclass
class _State:
    done_B: jax.Array
    last_BxK: jax.Array
    groups: tuple[BeamState, ...]


@dataclasses.dataclass(frozen=True)
class DiverseBeam:
    """A `Search` with `groups` beam searches of each sentence, in lockstep. A token that hypotheses of earlier groups have just
    chosen is likelier by `diversity` for each of them than it counts. Scores are the model's own; the n best of all groups are
    returned, best first.

    beam: the search of one group, whose n_best is its beam_size.
    """

    beam: BeamSearch
    groups: int
    diversity: float
    n_best: int = 1
    draws = False

    @property
    def width(self) -> int:
        """Hypotheses of a sentence."""
        return self.groups * self.beam.beam_size

    def start(self, sentences: Sentences, length: int) -> _State:
        groups = tuple(self.beam.start(sentences, length) for _ in range(self.groups))
        return _State(groups[0].done_B, jnp.concatenate([group.last_BxK for group in groups], 1), groups)

    def advance(self, sentences: Sentences, position, state: _State, logits_BxKxV):
        size = self.beam.beam_size
        log_probs_BxKxC, tokens_BxKxC = continuations(logits_BxKxV, 2 * self.width, forced_tokens(sentences, position))
        C, used_BxU, groups, parents = tokens_BxKxC.shape[2], None, [], []
        for g, old in enumerate(state.groups):
            own = slice(g * size, (g + 1) * size)
            ending_BxK = sentences.ending_BxK
            of_group = sentences.replace(ending_BxK=None if ending_BxK is None else ending_BxK[:, own])
            tokens_BxN = tokens_BxKxC[:, own].reshape(len(tokens_BxKxC), -1)
            totals_BxN = (old.alive_log_probs_BxK[..., None] + log_probs_BxKxC[:, own]).reshape(tokens_BxN.shape)
            ranked_BxN = totals_BxN
            if used_BxU is not None:
                uses_BxN = jnp.sum(tokens_BxN[..., None] == used_BxU[:, None], axis=2)
                ranked_BxN = totals_BxN - self.diversity * uses_BxN
            index_Bx2S = jax.lax.top_k(ranked_BxN, 2 * size)[1]
            totals_Bx2S, tokens_Bx2S = take(totals_BxN, index_Bx2S), take(tokens_BxN, index_Bx2S)
            ends_Bx2S = tokens_Bx2S == EOS
            bound = 2 * size if self.beam.early_stopping == "exact" else size
            ended_Bx2S = jnp.where(ends_Bx2S & (jnp.arange(2 * size) < bound), totals_Bx2S, -jnp.inf)
            # The first that continue, in the order of the candidates.
            going_Bx2S = ~ends_Bx2S & (totals_Bx2S > -jnp.inf)
            alive_index_BxS = jnp.argsort(~going_Bx2S, axis=1, stable=True)[:, :size]
            alive_BxS = jnp.where(take(going_Bx2S, alive_index_BxS), take(totals_Bx2S, alive_index_BxS), -jnp.inf)
            new, _ = self.beam.extend(
                of_group, position, old, index_Bx2S // C, tokens_Bx2S, ended_Bx2S, (alive_BxS, alive_index_BxS),
                ended_Bx2S[:, 0] > -jnp.inf,
            )  # fmt: skip

            def keep(a, b, done_B=old.done_B):
                return jnp.where(done_B.reshape(-1, *[1] * (a.ndim - 1)), a, b)

            groups.append(jax.tree.map(keep, old, new))
            parents.append(g * size + take(index_Bx2S // C, alive_index_BxS))
            latest_BxS = jnp.where(old.done_B[:, None] | (alive_BxS == -jnp.inf), -1, new.last_BxK)
            used_BxU = latest_BxS if used_BxU is None else jnp.concatenate([used_BxU, latest_BxS], 1)
        done_B = jnp.all(jnp.stack([group.done_B for group in groups]), axis=0)
        last_BxK = jnp.concatenate([group.last_BxK for group in groups], 1)
        return _State(done_B, last_BxK, tuple(groups)), jnp.concatenate(parents, 1)

    def result(self, sentences: Sentences, state: _State) -> SearchResult:
        results = [self.beam.result(sentences, group) for group in state.groups]
        every = jax.tree.map(lambda *x: jnp.concatenate(x, 1), *results)
        rank_BxK = jnp.where(every.lengths == 0, 2, jnp.where(every.finished, 0, 1))
        best_BxN = jnp.lexsort((-every.scores, rank_BxK), axis=1)[:, : self.n_best]
        return jax.tree.map(lambda x: take(x, best_BxN), every)


def diverse_beam(config: Config, tokenizers: TokenizerPair) -> DiverseBeam:
    """decode.strategy = diverse_beam."""
    c, group = config.decode, config.group("constraints")
    size = c.beam_size // group.groups
    beam = BeamSearch(size, c.alpha, size, c.length_penalty, c.early_stopping)
    return DiverseBeam(beam, group.groups, group.diversity, c.n_best)
