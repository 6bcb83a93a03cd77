"""Token rule under which every output is a tree over the words of its sentence.

`trees.from_linear` reads such a tree.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from t2t_flax.config import Config
from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.search_loop import Sentences
from t2t_flax.extensions.parsing.numbered import NumberedSymbols
from t2t_flax.extensions.parsing.trees import is_bracket
from t2t_flax.extensions.shared.token_rules import RuledStep, forbid

DEPTH = 64
"""Maximum constituents around a word."""
NEVER, END, TAG, OPEN, CLOSE = range(5)


@dataclasses.dataclass(frozen=True)
class Grammar:
    """A `TokenRule`.

    `Sentences.more["words"]` is the number of words of each sentence. Constituents are closed by
    their own label and not empty, each word gets one tag, and EOS comes at the end of a tree. A
    token that would leave no room for the rest is not written.

    Args:
        kinds: one byte for each token.
        labels: one number for both brackets of a pair; for tags, the number of their word modulo
            `count`.
    """

    kinds: bytes
    labels: tuple[int, ...]
    count: int = 1

    def start(self, sentences: Sentences, width: int, length: int) -> dict[str, dict]:
        """Return the state without open constituents and words."""
        shape = (len(sentences.caps_B), width)
        zero, filled = jnp.zeros(shape, jnp.int32), jnp.ones(shape, bool)
        return {
            "state": {
                "open": jnp.zeros((*shape, DEPTH), jnp.int32),
                "depth": zero,
                "words": zero,
                "filled": filled,
            }
        }

    def apply(self, sentences: Sentences, state, tokens_BxK, position, logits_BxKxV):
        """Write the latest token into the state; forbid tokens that lead to no tree."""
        V = logits_BxKxV.shape[-1]
        kinds_V = jnp.asarray(np.frombuffer(self.kinds.ljust(V, bytes([NEVER])), np.uint8))
        labels_V = jnp.asarray(np.array([*self.labels, *[0] * (V - len(self.labels))], np.int32))
        old = state["state"]
        kind_BxK = jnp.where(position == 0, NEVER, kinds_V[tokens_BxK])
        opens_BxK, closes_BxK, tags_BxK = (kind_BxK == kind for kind in (OPEN, CLOSE, TAG))
        here_BxKxD = jnp.arange(DEPTH) == old["depth"][..., None]
        open_BxKxD = jnp.where(
            opens_BxK[..., None] & here_BxKxD, labels_V[tokens_BxK][..., None], old["open"]
        )
        depth_BxK = old["depth"] + opens_BxK - closes_BxK
        words_BxK = old["words"] + tags_BxK
        filled_BxK = jnp.where(opens_BxK, False, tags_BxK | closes_BxK | old["filled"])

        left_BxK = sentences.more["words"][:, None] - words_BxK
        top_BxK = jnp.sum(
            jnp.where(jnp.arange(DEPTH) == depth_BxK[..., None] - 1, open_BxKxD, 0), axis=-1
        )
        # Tokens after this one: tags, brackets to be closed, EOS.
        room_BxK = sentences.caps_B[:, None] - position - 1
        may_open_BxK = (left_BxK > 0) & (depth_BxK < DEPTH) & (left_BxK + depth_BxK + 2 <= room_BxK)
        may_close_BxK = (depth_BxK > 0) & filled_BxK
        may_end_BxK = (depth_BxK == 0) & (left_BxK <= 0)

        def where(kind: int, allowed_BxK):
            return (kinds_V == kind) & allowed_BxK[..., None]

        allowed_BxKxV = where(OPEN, may_open_BxK) | where(END, may_end_BxK)
        allowed_BxKxV |= where(CLOSE, may_close_BxK) & (labels_V == top_BxK[..., None])
        turn_BxK = words_BxK % self.count
        allowed_BxKxV |= where(TAG, left_BxK > 0) & (labels_V == turn_BxK[..., None])
        new = {"open": open_BxKxD, "depth": depth_BxK, "words": words_BxK, "filled": filled_BxK}
        return forbid(logits_BxKxV, ~allowed_BxKxV), {"state": new}


def step(inner: Any, config: Config, tokenizers: TokenizerPair) -> RuledStep:
    """Return the step under the grammar."""
    return RuledStep(inner, token_rule(config, tokenizers))


def token_rule(config: Config, tokenizers: TokenizerPair) -> Grammar:
    """Return the rule for the symbols that a run's targets have.

    A bracket whose label lacks the other bracket is never written.
    """
    symbols = tokenizers.target.pieces(range(tokenizers.target.vocab_size))
    labels = sorted(
        {s[1:] for s in symbols if s[0] == "(" and len(s) > 1}
        & {s[1:] for s in symbols if s[0] == ")"}
    )
    count = tokenizers.target.count if isinstance(tokenizers.target, NumberedSymbols) else 0
    kinds = [TAG] * len(symbols)
    numbers = [0] * len(symbols)
    kinds[PAD], kinds[EOS], kinds[UNK] = NEVER, END, NEVER
    for i, symbol in enumerate(symbols):
        if is_bracket(symbol):
            known = symbol[1:] in labels
            kinds[i] = {"(": OPEN, ")": CLOSE}[symbol[0]] if known else NEVER
            numbers[i] = 1 + labels.index(symbol[1:]) if known else 0
        elif count and i > UNK:
            numbers[i] = int(symbol.rpartition("#")[2])
    return Grammar(bytes(kinds), tuple(numbers), count or 1)


def prepare(
    config: Config, tokenizers: TokenizerPair, lines: Sequence[str], first_line: int
) -> tuple[Sequence[str], dict[str, np.ndarray]]:
    """Return the lines, and the number of words of each."""
    return lines, {"words": np.array([len(line.split()) for line in lines], np.int32)}
