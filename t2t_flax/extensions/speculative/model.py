"""A model and its draft as one: rounds in which the draft proposes tokens and the model checks all of them at once.

Each sentence has its own number of tokens, so that one whose proposals are good waits for no other. Letters as in
`search_loop`, and D proposed tokens, T = D + 1 checked positions, L room for tokens.
"""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.decoding.batches import positions as most_positions
from t2t_flax.decoding.sampling import Sampling
from t2t_flax.decoding.search_loop import Sentences, log_sum_exp
from t2t_flax.extensions.shared.model_wrapper import ModelWrapper
from t2t_flax.extensions.speculative.search import Chosen
from t2t_flax.models.decoding_cache import DecodingCache, decoding_layout
from t2t_flax.models.transformer import Transformer


@flax.struct.dataclass
class OwnPositions(DecodingCache):
    """Keys [B, G, d_k, slots] and values [B, G, slots, d_v], written at several positions at once, of each sentence its own.

    spare: slots beyond the room for tokens, so that those written last fit in.
    """

    spare: int = flax.struct.field(pytree_node=False, default=0)

    @classmethod
    def of(cls, cache: DecodingCache, spare: int) -> "OwnPositions":
        """An empty cache of one hypothesis, which has the spare slots."""
        return cls(cache.key[:, 0], cache.value[:, 0], None, spare)

    def rows(self, x_BxTxD: jax.Array) -> jax.Array:
        """The positions of a sentence are the rows of queries."""
        return x_BxTxD

    def hypotheses(self, x: jax.Array) -> jax.Array:
        """The inverse of `rows`."""
        return x

    def write(self, k: jax.Array, v: jax.Array, position: jax.Array) -> "OwnPositions":
        """Returns a copy with keys and values [B, T, G, width] written from the first of the positions [B, T] on."""
        new_key, new_value = decoding_layout(k, v)
        first_B = position[:, 0]
        update = jax.lax.dynamic_update_slice_in_dim
        key = jax.vmap(lambda old, new, first: update(old, new, first, 2))(self.key, new_key, first_B)
        value = jax.vmap(lambda old, new, first: update(old, new, first, 1))(self.value, new_value, first_B)
        return self.replace(key=key, value=value)

    def mask(self, visible_T: jax.Array) -> jax.Array:
        """Returns `visible_T`, [B, T, slots], for all heads."""
        return visible_T[:, None]

    def grow(self, length: int) -> "OwnPositions":
        """Returns a copy with room for `length` tokens."""
        grown = super().grow(length + self.spare)
        return self.replace(key=grown.key, value=grown.value)


@flax.struct.dataclass
class Written:
    """What is written of each sentence, ahead of the search: tokens, their log-probabilities [B, 1, L], how many (count_B), and
    whether EOS is among them; caches of both models.
    """

    tokens_Bx1xL: jax.Array
    log_probs_Bx1xL: jax.Array
    count_B: jax.Array
    ended_B: jax.Array
    caches: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class WithDraft(ModelWrapper):
    """A Transformer that decodes with a draft. tokens: D. Parameters are under `model` and `draft`."""

    draft: Transformer
    tokens: int

    @property
    def output_params(self) -> tuple[str, ...]:
        """Names of the top-level parameters that `logits` reads."""
        return ("model",)

    def apply(self, variables: dict[str, Any], *args: Any, method: str, **options: Any) -> Any:
        """As `flax.linen.Module.apply`."""
        params = variables["params"]
        if method in ("start_cache", "decode_step"):
            return getattr(self, method)(params, *args)
        return self.model.apply({"params": params["model"]}, *args, method=method, **options)

    def start_cache(self, params: Any, source_BxS: jax.Array, beam_size: int, length: int) -> dict[str, Any]:
        """See `Transformer.start_cache`; beam_size is 1."""
        batch, spare, caches, cross = len(source_BxS), self.tokens + 1, {}, {}
        for name in ("model", "draft"):
            cache = self._apply(params, name, source_BxS, 1, length + spare, method="start_cache")
            caches[name] = [OwnPositions.of(own, spare) for own in cache["self"]]
            cross[name] = cache["cross"]
        tokens_Bx1xL = jnp.full((batch, 1, length), PAD, jnp.int32)
        count_B = jnp.zeros(batch, jnp.int32)
        written = Written(tokens_Bx1xL, tokens_Bx1xL.astype(jnp.float32), count_B, count_B > 0, caches)
        return {"self": written, "cross": cross}

    def decode_step(
        self, params: Any, tokens_BxK: jax.Array, position: jax.Array, cache: dict[str, Any]
    ) -> tuple[Chosen, dict[str, Any]]:
        """The token at `position`, after the rounds which it takes until all sentences have it, and the new cache."""
        caps_B = cache["sentences"].caps_B

        def missing(written: Written) -> jax.Array:
            return jnp.any((written.count_B <= position) & (written.count_B < caps_B) & ~written.ended_B)

        written = jax.lax.while_loop(missing, lambda written: self._round(params, cache, written), cache["self"])
        chosen = Chosen(written.tokens_Bx1xL[:, :, position], written.log_probs_Bx1xL[:, :, position])
        return chosen, cache | {"self": written}

    def _round(self, params: Any, cache: dict[str, Any], written: Written) -> Written:
        """Adds 1 to D + 1 tokens to the sentences that are not complete."""
        sentences, count_B, caches = cache["sentences"], written.count_B, dict(written.caches)
        length = written.tokens_Bx1xL.shape[2]

        def logits_of(name: str, own: Any, tokens_BxT: jax.Array, first_B: jax.Array) -> tuple[jax.Array, Any]:
            """Logits after each of the tokens, the first of which is at position first_B - 1."""
            last = most_positions(getattr(self, name).config) - 1  # no position beyond a learned table
            positions_BxT = jnp.minimum(first_B[:, None] + jnp.arange(tokens_BxT.shape[1]), last)
            part = {"self": own, "cross": cache["cross"][name]}
            logits_BxTxV, part = self._apply(params, name, tokens_BxT, positions_BxT, part, method="decode_step")
            return logits_BxTxV, part["self"]

        def propose(carry, i):
            own, token_B = carry
            logits_Bx1xV, own = logits_of("draft", own, token_B[:, None], count_B + i)
            token_B = _choose(sentences, logits_Bx1xV, count_B + i)[:, 0]
            return (own, token_B), token_B

        # The draft reads the last two tokens, since it has not read its own last proposal. (Without any, what it reads second is
        # overwritten before it is seen.)
        before_B = jnp.maximum(count_B - 1, 0)
        last_Bx2 = _take(written.tokens_Bx1xL[:, 0], jnp.stack([count_B - 2, count_B - 1], 1))
        logits_Bx2xV, own = logits_of("draft", caches["draft"], last_Bx2, before_B)
        first_Bx1 = _take(_choose(sentences, logits_Bx2xV, before_B), (count_B - before_B)[:, None])
        (caches["draft"], _), rest = jax.lax.scan(propose, (own, first_Bx1[:, 0]), jnp.arange(1, self.tokens))
        proposed_BxD = jnp.concatenate([first_Bx1, rest.T], 1)

        read_BxT = jnp.concatenate([last_Bx2[:, 1:], proposed_BxD], 1)
        logits_BxTxV, caches["model"] = logits_of("model", caches["model"], read_BxT, count_B)
        tokens_BxT = _choose(sentences, logits_BxTxV, count_B)
        log_probs_BxT = _of_tokens(logits_BxTxV, tokens_BxT) - log_sum_exp(logits_BxTxV)[..., 0]

        agreed_BxD = jnp.cumprod(tokens_BxT[:, :-1] == proposed_BxD, axis=1)
        open_BxD = jnp.cumprod(tokens_BxT[:, :-1] != EOS, axis=1)
        new_B = 1 + jnp.sum(agreed_BxD * open_BxD, axis=1)
        incomplete_B = (count_B < sentences.caps_B) & ~written.ended_B
        new_B = jnp.where(incomplete_B, jnp.minimum(new_B, length - count_B), 0)
        index_BxL = jnp.arange(length) - count_B[:, None]
        is_new_BxL = (index_BxL >= 0) & (index_BxL < new_B[:, None])

        def add(old_Bx1xL, new_BxT):
            return jnp.where(is_new_BxL, _take(new_BxT, index_BxL), old_Bx1xL[:, 0])[:, None]

        tokens_Bx1xL = add(written.tokens_Bx1xL, tokens_BxT)
        ended_B = jnp.any(is_new_BxL & (tokens_Bx1xL[:, 0] == EOS), axis=1)
        return Written(
            tokens_Bx1xL,
            add(written.log_probs_Bx1xL, log_probs_BxT),
            count_B + new_B,
            written.ended_B | ended_B,
            caches,
        )

    def _apply(self, params: Any, name: str, *args: Any, method: str) -> Any:
        return getattr(self, name).apply({"params": params[name]}, *args, method=method)


def _choose(sentences: Sentences, logits_BxTxV: jax.Array, first_B: jax.Array) -> jax.Array:
    """The token at positions from `first_B` on, int32 [B, T]: the likeliest, unless one is forced."""
    tokens_BxT = Sampling(temperature=0.0).draw(None, None, logits_BxTxV)
    prefix_BxP = sentences.more.get("prefix")
    if prefix_BxP is None:
        return tokens_BxT
    positions_BxT = first_B[:, None] + jnp.arange(tokens_BxT.shape[1])
    forced_BxT = jnp.where(positions_BxT < prefix_BxP.shape[1], _take(prefix_BxP, positions_BxT), PAD)
    return jnp.where(forced_BxT == PAD, tokens_BxT, forced_BxT)


def _take(x_BxN: jax.Array, index_BxT: jax.Array) -> jax.Array:
    """x at these indices, which are moved into its range."""
    return jnp.take_along_axis(x_BxN, jnp.clip(index_BxT, 0, x_BxN.shape[1] - 1), axis=1)


def _of_tokens(logits_BxTxV: jax.Array, tokens_BxT: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits_BxTxV, tokens_BxT[..., None], axis=-1)[..., 0]
