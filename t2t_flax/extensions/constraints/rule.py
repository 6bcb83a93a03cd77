"""Token rules: forbidden phrases, repeated n-grams, penalties, suppressed tokens."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config import Config
from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair
from t2t_flax.decoding.sampling import Sampling
from t2t_flax.decoding.search_loop import IMPOSSIBLE, SearchResult, Sentences, run_search
from t2t_flax.errors import UserError
from t2t_flax.extensions.constraints import CONSTRAINED, JSON, Constraints, avoid
from t2t_flax.extensions.constraints.lines import Wanted, read_files, wanted
from t2t_flax.extensions.constraints.segmentation import arrays, forms, power_of_two
from t2t_flax.extensions.shared.token_rules import RuledStep, forbid


@dataclasses.dataclass(frozen=True)
class Rule:
    """A `TokenRule`; the other fields are described in `Constraints`.

    Args:
        ends_word: result of `avoid.ends_word` if `Sentences.more["avoid"]` has edges of `avoid`,
            else empty.
    """

    ends_word: bytes = b""
    no_repeat_ngram: int = 0
    min_length: int = 0
    repetition_penalty: float = 0.0
    suppress: tuple[int, ...] = ()

    @property
    def _reads_tokens(self) -> bool:
        return self.no_repeat_ngram > 0 or self.repetition_penalty > 0

    def start(self, sentences: Sentences, width: int, length: int) -> dict[str, Any]:
        state: dict[str, Any] = {}
        if self.ends_word:
            state["state"] = avoid.start(sentences.more["avoid"], width)
        if self._reads_tokens:
            state["tokens"] = jnp.full((len(sentences.caps_B), width, length), PAD, jnp.int32)
        return state

    def apply(self, sentences: Sentences, state, tokens_BxK, position, logits_BxKxV):
        B, K, V = logits_BxKxV.shape
        tokens_BxK, new = jnp.where(position == 0, PAD, tokens_BxK), dict(state)
        rows, beams = jnp.arange(B)[:, None, None], jnp.arange(K)[:, None]
        if self._reads_tokens:
            # Time t holds the token at position t - 1.
            new["tokens"] = history_BxKxT = state["tokens"].at[:, :, position].set(tokens_BxK)
        if self.repetition_penalty:
            had_BxKxV = (
                jnp.zeros((B, K, V), bool)
                .at[rows, beams, history_BxKxT]
                .set(True)
                .at[..., PAD]
                .set(False)
            )
            had_BxKxV &= logits_BxKxV > IMPOSSIBLE  # no factor makes these possible
            factor_BxKxV = jnp.where(
                logits_BxKxV > 0, 1 / self.repetition_penalty, self.repetition_penalty
            )
            logits_BxKxV = jnp.where(had_BxKxV, logits_BxKxV * factor_BxKxV, logits_BxKxV)
        forbidden_BxKxV = jnp.zeros((B, K, V), bool)
        if self.no_repeat_ngram:
            again_BxKxT = _repeats(history_BxKxT, position, self.no_repeat_ngram)
            forbidden_BxKxV = forbidden_BxKxV.at[rows, beams, again_BxKxT].set(True)
        if self.ends_word:
            edges_BxEx3, ends_V = (
                sentences.more["avoid"],
                jnp.asarray(np.frombuffer(self.ends_word, bool)),
            )
            after_BxKxS = avoid.advance(edges_BxEx3, state["state"], tokens_BxK, ends_V)
            new["state"] = states_BxKxS = jnp.where(position == 0, state["state"], after_BxKxS)
            ends_BxKxE = avoid.completing(edges_BxEx3, states_BxKxS)
            forbidden_BxKxV = forbidden_BxKxV.at[rows, beams, ends_BxKxE].set(True)
        if self.suppress:
            forbidden_BxKxV = forbidden_BxKxV.at[..., jnp.array(self.suppress)].set(True)
        if self.min_length:
            early = position < self.min_length
            forbidden_BxKxV = forbidden_BxKxV.at[..., EOS].max(early)
        return forbid(logits_BxKxV, forbidden_BxKxV), new


def _repeats(history_BxKxT, position, n: int) -> jax.Array:
    """Return the tokens that would repeat an n-gram, and PAD, int32 [B, K, T].

    Args:
        history_BxKxT: time t holds position t - 1.
    """
    T = history_BxKxT.shape[2]
    times = jnp.arange(T)
    same_BxKxT = jnp.broadcast_to((times >= n) & (times <= position), history_BxKxT.shape)
    for back in range(1, n):
        latest_BxKx1 = jnp.take(history_BxKxT, jnp.maximum(position - back + 1, 0)[None], axis=2)
        same_BxKxT &= jnp.roll(history_BxKxT, back, axis=2) == latest_BxKx1
    return jnp.where(same_BxKxT, history_BxKxT, PAD)


class PenalizedStep(RuledStep):
    """A `RuledStep` whose rule changes probabilities.

    Hypotheses are ranked by the changed probabilities and report the model's.
    """

    def own_log_probs(
        self, params: Any, source_BxS: jax.Array, sentences: Sentences, result: SearchResult
    ) -> SearchResult:
        """Decode the hypotheses again, each forced, by the step without the rule."""
        B, N, T = result.tokens.shape

        def each(x):
            return jnp.repeat(x, N, axis=0)

        more = jax.tree.map(each, sentences.more) | {"prefix": result.tokens.reshape(B * N, T)}
        forced = Sentences(jnp.maximum(result.lengths, 1).reshape(B * N), more=more)
        search = Sampling(temperature=0.0)
        cache = self.step.start(params, each(source_BxS), forced, search.width, T)
        log_probs = run_search(
            self.step, params, cache, search, forced, lengths=(T,)
        ).log_probs.reshape(B, N)
        return dataclasses.replace(
            result, log_probs=jnp.where(result.lengths > 0, log_probs, -jnp.inf)
        )


def step(inner: Any, config: Config, tokenizers: TokenizerPair) -> RuledStep:
    """Return the step under the rule of a config.

    Raises UserError as `token_rule`, and for a file of phrases.
    """
    read_files(config.group("constraints"))
    rule = token_rule(config, tokenizers)
    return (PenalizedStep if rule.repetition_penalty else RuledStep)(inner, rule)


def token_rule(config: Config, tokenizers: TokenizerPair) -> Rule:
    """Return the rule of a config.

    Raises UserError for a suppressed token that the vocabulary lacks.
    """
    group: Constraints = config.group("constraints")
    vocabulary = {
        piece: i
        for i, piece in enumerate(tokenizers.target.pieces(range(tokenizers.target.vocab_size)))
    }
    if unknown := [piece for piece in group.suppress.split() if piece not in vocabulary]:
        raise UserError(
            f"config.constraints.suppress: {unknown[0]!r} is no token of the target vocabulary."
        )
    suppress = tuple(vocabulary[piece] for piece in group.suppress.split())
    ends_word = avoid.ends_word(tokenizers.target) if _avoids(group) else b""
    return Rule(
        ends_word, group.no_repeat_ngram, group.min_length, group.repetition_penalty, suppress
    )


def _avoids(group: Constraints) -> bool:
    return bool(group.avoid) or group.lines == JSON


def prepare(
    config: Config, tokenizers: TokenizerPair, lines: Sequence[str], first_line: int
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the text of each line and the constraints on its translation.

    Raises UserError for a line that cannot be read, and for required phrases if the search does not
    look for them.
    """
    group: Constraints = config.group("constraints")
    found, target, looks = [], tokenizers.target, config.decode.strategy == CONSTRAINED
    for number, line in enumerate(lines, first_line + 1):
        _, text = tokenizers.source.split(line)
        symbols = line[: len(line) - len(text)]
        asked = wanted(group, text, f"line {number}")
        if asked.contain and not looks:
            raise UserError(
                f"line {number} has phrases that its translation contains, which needs"
                f" config.decode.strategy = {CONSTRAINED}."
            )
        for phrases in asked.contain:
            if not any(forms(target, phrase) for phrase in phrases):
                raise UserError(
                    f"line {number}: its translation is to contain"
                    f" {' or '.join(map(repr, phrases))}, which has characters that the target"
                    " vocabulary lacks."
                )
        found.append(dataclasses.replace(asked, text=symbols + asked.text))
    more = {}
    if looks:
        more["must"] = _must(target, found)
    if _avoids(group):
        # Lines that avoid the same phrases, such as the phrases of a file, share one row in memory.
        each = [
            asked.avoid
            for asked in (found[:1] if len({asked.avoid for asked in found}) == 1 else found)
        ]
        rows = avoid.array([avoid.edges(target, phrases) for phrases in each])
        more["avoid"] = np.broadcast_to(rows, (len(found), *rows.shape[1:]))
    return [asked.text for asked in found], more


def _must(tokenizer: Tokenizer, found: Sequence[Wanted]) -> np.ndarray:
    """Return int32 [lines, C, S, L] for `ConstrainedBeam`."""
    rows = [
        [
            [ids for phrase in phrases for ids in forms(tokenizer, phrase)]
            for phrases in asked.contain
        ]
        for asked in found
    ]
    most = max((len(row) for row in rows), default=0)
    flat = arrays([form for row in rows for form in [*row, *[[]] * (most - len(row))]], (1, 4))
    must = flat.reshape(len(rows), most, *flat.shape[1:])
    return np.pad(must, [(0, 0), (0, max(2, power_of_two(most)) - most), (0, 0), (0, 0)])
