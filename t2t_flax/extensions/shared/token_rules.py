"""Rules on the next token: its logits, given a hypothesis so far.

A rule may forbid tokens. Dimensions as in `decoding.search_loop`.
"""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from t2t_flax.config.data_keys import PAD
from t2t_flax.decoding.search_loop import (
    IMPOSSIBLE,
    Cache,
    SearchResult,
    Sentences,
    by_rows,
    forced_tokens,
    log_sum_exp,
)


class TokenRule(Protocol):
    """Rule that changes the logits of a hypothesis by its tokens so far.

    It is frozen, since equal rules share compiled programs. Its state has arrays [B, K, ...] that
    are reordered with the hypotheses, as cache["self"] of a `StepFn` (time on axis 2, except under
    a key "state"). `Sentences` holds its inputs for each sentence.
    """

    def start(self, sentences: Sentences, width: int, length: int) -> Any:
        """Return the state of `width` hypotheses before the first token.

        It has room for `length` tokens.
        """

    def apply(
        self,
        sentences: Sentences,
        state: Any,
        tokens_BxK: jax.Array,
        position: jax.Array,
        logits_BxKxV: jax.Array,
    ) -> tuple[jax.Array, Any]:
        """Return the logits at `position` and the new state.

        The tokens are at position - 1 (to be ignored at position 0).
        """


def forbid(logits_BxKxV: jax.Array, forbidden_BxKxV: jax.Array) -> jax.Array:
    """Return logits with which no search writes the forbidden tokens.

    Their probability goes to padding, which is never written either, so that the log-probabilities
    of all others stay the model's own.
    """
    forbidden_BxKxV = forbidden_BxKxV.at[..., PAD].set(False)
    rest_BxKxV = jnp.where(forbidden_BxKxV, logits_BxKxV, 10 * IMPOSSIBLE)
    rest_BxKxV = rest_BxKxV.at[..., PAD].set(logits_BxKxV[..., PAD])
    logits_BxKxV = jnp.where(forbidden_BxKxV, IMPOSSIBLE, logits_BxKxV)
    return logits_BxKxV.at[..., PAD].set(log_sum_exp(rest_BxKxV)[..., 0])


@dataclasses.dataclass(frozen=True)
class RuledStep:
    """A decoding step whose logits follow a rule.

    Forced tokens ignore the rule.
    """

    step: Any
    rule: TokenRule

    def start(
        self, params: Any, source_BxS: jax.Array, sentences: Sentences, width: int, length: int
    ) -> Cache:
        """See `decoding.translator.DecodeStep.start`.

        The cache has the state of the rule before the first token, too.
        """
        cache = self.step.start(params, source_BxS, sentences, width, length)
        return cache | {
            "self": {"model": cache["self"], "rule": _start(self.rule, sentences, width, length)}
        }

    def own_log_probs(
        self, params: Any, source_BxS: jax.Array, sentences: Sentences, result: SearchResult
    ) -> SearchResult:
        """See `decoding.translator.DecodeStep.own_log_probs`."""
        return self.step.own_log_probs(params, source_BxS, sentences, result)

    def __call__(
        self, params: Any, tokens_BxK: jax.Array, position: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        sentences, own = cache["sentences"], cache["self"]
        free_BxKxV, after = self.step(params, tokens_BxK, position, cache | {"self": own["model"]})
        logits_BxKxV, state = self.rule.apply(
            sentences, own["rule"], tokens_BxK, position, free_BxKxV
        )
        forced_B = forced_tokens(sentences, position)
        if forced_B is not None:
            logits_BxKxV = jnp.where(forced_B[:, None, None] == PAD, logits_BxKxV, free_BxKxV)
        return logits_BxKxV, after | {"self": {"model": after["self"], "rule": state}}


@jax.jit(static_argnums=(0, 2, 3))
def _start(rule: TokenRule, sentences: Sentences, width: int, length: int) -> Any:
    return by_rows(rule.start(sentences, width, length))
