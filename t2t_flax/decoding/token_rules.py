"""Rules on the next token: what a search may write after what a hypothesis has, and with which logits.

Dimensions as in `search_loop`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config import Config
from t2t_flax.config.data_keys import PAD
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.programs import program
from t2t_flax.decoding.search_loop import IMPOSSIBLE, Cache, Sentences, StepFn, by_rows, forced_tokens, log_sum_exp
from t2t_flax.registry import TOKEN_RULES


class TokenRule(Protocol):
    """Changes the logits of a hypothesis by its tokens so far; frozen, since equal ones share compiled programs. State: arrays
    [B, K, ...] that are reordered with the hypotheses, as cache["self"] of a `StepFn` (time on axis 2, except under a key
    "state"). What it reads of each sentence is in `Sentences`.
    """

    def start(self, sentences: Sentences, width: int, length: int) -> Any:
        """The state of `width` hypotheses before the first token, with room for `length` tokens."""

    def apply(
        self, sentences: Sentences, state: Any, tokens_BxK: jax.Array, position: jax.Array, logits_BxKxV: jax.Array
    ) -> tuple[jax.Array, Any]:
        """The logits at `position`, given the tokens at position - 1 (to be ignored at position 0), and the new state."""


def forbid(logits_BxKxV: jax.Array, forbidden_BxKxV: jax.Array) -> jax.Array:
    """Logits with which no search writes the forbidden tokens. Their probability goes to padding, which is never written
    either, so that the log-probabilities of all others stay the model's own.
    """
    forbidden_BxKxV = forbidden_BxKxV.at[..., PAD].set(False)
    rest_BxKxV = jnp.where(forbidden_BxKxV, logits_BxKxV, 10 * IMPOSSIBLE)
    rest_BxKxV = rest_BxKxV.at[..., PAD].set(logits_BxKxV[..., PAD])
    logits_BxKxV = jnp.where(forbidden_BxKxV, IMPOSSIBLE, logits_BxKxV)
    return logits_BxKxV.at[..., PAD].set(log_sum_exp(rest_BxKxV)[..., 0])


@dataclasses.dataclass(frozen=True)
class RuledStep:
    """A `StepFn` whose logits follow rules, one after the other, except where a token is forced."""

    step: StepFn
    rules: tuple[TokenRule, ...]

    def __call__(
        self, params: Any, tokens_BxK: jax.Array, position: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        sentences, states = cache["sentences"], []
        free_BxKxV, after = self.step(params, tokens_BxK, position, cache | {"self": cache["self"]["model"]})
        logits_BxKxV = free_BxKxV
        for rule, state in zip(self.rules, cache["self"]["rules"], strict=True):
            logits_BxKxV, state = rule.apply(sentences, state, tokens_BxK, position, logits_BxKxV)
            states.append(state)
        forced_B = forced_tokens(sentences, position)
        if forced_B is not None:
            logits_BxKxV = jnp.where(forced_B[:, None, None] == PAD, logits_BxKxV, free_BxKxV)
        return logits_BxKxV, after | {"self": {"model": after["self"], "rules": states}}


def with_rules(cache: Cache, rules: tuple[TokenRule, ...], sentences: Sentences, width: int, length: int) -> Cache:
    """The cache for a `RuledStep`, with the states of rules before the first token; arguments as of `TokenRule.start`."""
    return cache | {"self": {"model": cache["self"], "rules": _start(rules, sentences, width, length)}}


@program(0, 2, 3)
def _start(rules: tuple[TokenRule, ...], sentences: Sentences, width: int, length: int) -> list[Any]:
    return by_rows([rule.start(sentences, width, length) for rule in rules])


def read_lines(
    config: Config, tokenizers: TokenizerPair, lines: Sequence[str], first_line: int
) -> tuple[Sequence[str], dict[str, np.ndarray]]:
    """The text of source lines, and `Sentences.more` that the rules of a config make of them. first_line: number of the first
    one, from 0. Raises UserError for a line that a rule cannot read.
    """
    more: dict[str, np.ndarray] = {}
    for module in TOKEN_RULES.of(config):
        lines, arrays = module.prepare(config, tokenizers, lines, first_line)
        more |= arrays
    return lines, more
