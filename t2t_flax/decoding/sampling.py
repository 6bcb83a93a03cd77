"""Greedy search and sampling with temperature, top-k, top-p and epsilon.

Both use the same step function as beam search.
"""

import dataclasses

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
    top_k,
)


@flax.struct.dataclass
class _State:
    done_B: jax.Array
    last_BxK: jax.Array
    tokens_BxKxT: jax.Array
    log_probs_BxK: jax.Array
    lengths_BxK: jax.Array
    ended_BxK: jax.Array


@dataclasses.dataclass(frozen=True)
class Sampling:
    """`Search` for `num_samples` outputs (K) of each sentence.

    Outputs are ordered by sample index. The noise is a function of `random_keys` and position.
    `log_probs` are the model's own (temperature 1, all tokens) and `scores` equal them.

    Args:
        num_samples: number of outputs K per sentence.
        temperature: divides the logits; 0 = greedy (argmax).
        top_k: samples from the k likeliest tokens; 0 = all.
        top_p: samples from the smallest set of likeliest tokens with at least this probability
            mass, after temperature and top_k; 1 = all.
        epsilon: samples from tokens with at least this probability, after temperature, or from the
            likeliest if there are none; 0 = all.
    """

    num_samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    epsilon: float = 0.0

    @property
    def width(self) -> int:
        """Number of outputs per sentence."""
        return self.num_samples

    @property
    def draws(self) -> bool:
        """True if the search reads random keys."""
        return self.temperature > 0

    def start(self, sentences: Sentences, length: int) -> _State:
        shape = (len(sentences.caps_B), self.num_samples)
        return _State(
            done_B=sentences.caps_B < 1,
            last_BxK=jnp.zeros(shape, jnp.int32),
            tokens_BxKxT=jnp.zeros((*shape, length), jnp.int32),
            log_probs_BxK=jnp.zeros(shape),
            lengths_BxK=jnp.zeros(shape, jnp.int32),
            ended_BxK=jnp.zeros(shape, bool),
        )

    def advance(self, sentences: Sentences, position, state: _State, logits_BxKxV):
        tokens_BxK = self.draw(sentences.keys_BxK, position, logits_BxKxV)
        forced_B = forced_tokens(sentences, position)
        if forced_B is not None:
            tokens_BxK = jnp.where(forced_B[:, None] == PAD, tokens_BxK, forced_B[:, None])
        log_probs_BxK = _take(logits_BxKxV, tokens_BxK) - log_sum_exp(logits_BxKxV)[..., 0]
        # PAD is drawn where no token is possible.
        log_probs_BxK += jnp.where(tokens_BxK == PAD, -jnp.inf, 0.0)
        ended_BxK = state.ended_BxK | (tokens_BxK == EOS) | (tokens_BxK == PAD)
        tokens_BxK = jnp.where(state.ended_BxK, PAD, tokens_BxK)
        new = _State(
            done_B=jnp.all(ended_BxK, axis=1) | (position + 1 >= sentences.caps_B),
            last_BxK=tokens_BxK,
            tokens_BxKxT=state.tokens_BxKxT.at[:, :, position].set(tokens_BxK),
            log_probs_BxK=jnp.where(
                state.ended_BxK, state.log_probs_BxK, state.log_probs_BxK + log_probs_BxK
            ),
            lengths_BxK=jnp.where(state.ended_BxK, state.lengths_BxK, position + 1),
            ended_BxK=ended_BxK,
        )
        return new, None

    def draw(self, keys_BxK, position, logits_BxKxV) -> jax.Array:
        """Draw one token per sample, int32 [B, K], from softmax(logits / temperature).

        Only allowed tokens are drawn.
        """
        vocabulary = logits_BxKxV.shape[-1]
        excluded = (jnp.arange(vocabulary) == PAD) | (logits_BxKxV <= IMPOSSIBLE)
        logits_BxKxC, ids_BxKxC = jnp.where(excluded, -jnp.inf, logits_BxKxV), None
        if self.temperature == 0:
            return top_k(logits_BxKxC, 1)[1][..., 0]
        if self.epsilon:
            likeliest = logits_BxKxC == jnp.max(logits_BxKxC, axis=-1, keepdims=True)
            allowed = jax.nn.softmax(logits_BxKxC / self.temperature) >= self.epsilon
            logits_BxKxC = jnp.where(allowed | likeliest, logits_BxKxC, -jnp.inf)
        if self.top_k or self.top_p < 1:
            logits_BxKxC, ids_BxKxC = top_k(logits_BxKxC, min(self.top_k or vocabulary, vocabulary))
        largest_BxKx1 = jnp.max(logits_BxKxC, axis=-1, keepdims=True)
        weights_BxKxC = jnp.exp((logits_BxKxC - largest_BxKx1) / self.temperature)
        cumulative_BxKxC = jnp.cumsum(weights_BxKxC, axis=-1)
        if self.top_p < 1:
            last_BxK = nucleus_size(cumulative_BxKxC, self.top_p) - 1
            total_BxK = _take(cumulative_BxKxC, last_BxK)
        else:
            last_BxK = (
                weights_BxKxC.shape[-1] - 1 - jnp.argmax(jnp.flip(weights_BxKxC > 0, -1), axis=-1)
            )
            total_BxK = cumulative_BxKxC[..., -1]
        # Inverts the cumulative distribution at a uniform number: takes the first token above it.
        uniform_BxK = jax.vmap(
            jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, position)))
        )(keys_BxK)
        drawn_BxK = jnp.sum(
            cumulative_BxKxC <= (uniform_BxK * total_BxK)[..., None], axis=-1, dtype=jnp.int32
        )
        # Each cumulative sum is added up in its own order, so one can be larger than a later one.
        drawn_BxK = jnp.minimum(drawn_BxK, last_BxK.astype(jnp.int32))
        return drawn_BxK if ids_BxKxC is None else _take(ids_BxKxC, drawn_BxK)

    def result(self, sentences: Sentences, state: _State) -> SearchResult:
        log_probs_BxK = state.log_probs_BxK
        found_BxK = log_probs_BxK > -jnp.inf
        tokens_BxKxT = jnp.where(found_BxK[..., None], state.tokens_BxKxT, PAD)
        lengths_BxK, finished_BxK = (
            jnp.where(found_BxK, state.lengths_BxK, 0),
            state.ended_BxK & found_BxK,
        )
        return SearchResult(tokens_BxKxT, log_probs_BxK, log_probs_BxK, lengths_BxK, finished_BxK)


def greedy(config: Config, tokenizers: TokenizerPair) -> Sampling:
    """Build the search of decode.strategy = greedy."""
    return Sampling(temperature=0.0)


def sample(config: Config, tokenizers: TokenizerPair) -> Sampling:
    """Build the search of decode.strategy = sample."""
    c = config.decode
    return Sampling(c.n_best, c.temperature, c.top_k, c.top_p, c.epsilon)


def random_keys(seed: int, ids_B: jax.Array, num_samples: int) -> jax.Array:
    """Return keys [B, K] from the seed, each sentence's number and the sample's index.

    So an output does not depend on its batch.
    """
    # jax.random.key keeps 32 bits of the seed.
    low, high = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    key = jax.random.fold_in(jax.random.key(low, impl="threefry2x32"), high)
    return _keys(key, ids_B, num_samples)


@jax.jit(static_argnums=2)
def _keys(key, ids_B, num_samples: int):
    sentence_keys_B = jax.vmap(lambda i: jax.random.fold_in(key, i))(ids_B.astype(jnp.uint32))
    return jax.vmap(
        lambda k: jax.vmap(lambda i: jax.random.fold_in(k, i))(jnp.arange(num_samples))
    )(sentence_keys_B)


def nucleus_size(cumulative: jax.Array, top_p: float) -> jax.Array:
    """Return how many of the likeliest tokens reach probability `top_p`, int32 [...].

    Args:
        cumulative: cumulative weights of tokens in decreasing order [..., C], not normalized.
    """
    return 1 + jnp.sum(
        cumulative[..., :-1] < top_p * cumulative[..., -1:], axis=-1, dtype=jnp.int32
    )


def _take(x_BxKxC: jax.Array, index_BxK: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x_BxKxC, index_BxK[..., None], axis=-1)[..., 0]
