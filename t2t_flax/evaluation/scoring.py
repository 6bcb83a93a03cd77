"""Forced decoding: log-probabilities of given target sentences."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config.data_keys import EOS
from t2t_flax.decoding.batches import SOURCE_LENGTHS, padded, round_up, source_ids
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.models.transformer import Transformer
from t2t_flax.tasks import task_of

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel

_WHOLE_BATCH = 256
"""Tokens per side up to which `pair_batches` uses config.decode.batch_size.

Longer pairs are in smaller batches.
"""

_LOGITS_TOKENS = 512
"""Tokens whose logits exist at once.

Logits of a whole batch would take most of the memory.
"""


@dataclasses.dataclass(frozen=True)
class PairScore:
    """Log-probability in nats of a target given its source, in all and for each token.

    The last token is EOS.
    """

    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]

    @property
    def log_prob(self) -> float:
        return float(np.sum(self.token_log_probs))

    @property
    def per_token(self) -> float:
        return self.log_prob / len(self.token_log_probs)


@dataclasses.dataclass(frozen=True)
class PairIds:
    """Token ids of a pair.

    The target ends with EOS, and the source too if the run appends it.
    """

    source: list[int]
    target: list[int]


def score(
    run: "TrainedModel", pairs: Sequence[tuple[str, str]], where: Callable[[int], str]
) -> list[PairScore]:
    """Return the score of each pair, see `TrainedModel.score`."""
    encoded = []
    for number, pair in enumerate(pairs, 1):
        try:
            encoded.append(encode_pair(run, *pair))
        except UserError as error:
            raise UserError(f"{where(number)}: {error}") from None
    return score_pairs(run, encoded)


def encode_source(run: "TrainedModel", source: str) -> list[int]:
    """Return the token ids of a source sentence.

    Raises UserError for an empty or too long sentence, and as `TrainedModel.in_language`.
    """
    ids = source_ids(
        run.tokenizers.source, run.in_language(task_of(run.config).preprocess_source(source))
    )
    _check_side(run, "source", source, ids)
    return ids + [EOS] * run.config.data.source_eos


def encode_pair(run: "TrainedModel", source: str, target: str) -> PairIds:
    """Return the token ids of a pair.

    Raises UserError as `encode_source`, and for a target that is empty, too long or invalid for the
    task.
    """
    if source.strip() and target.strip():
        target = task_of(run.config).preprocess_target(source, target)
    source_tokens, target_tokens = (
        encode_source(run, source),
        run.tokenizers.target.encode_text(target),
    )
    _check_side(run, "target", target, target_tokens)
    return PairIds(source_tokens, target_tokens + [EOS])


def _check_side(run: "TrainedModel", side: str, text: str, ids: list[int]) -> None:
    limit = run.max_source_length
    if not text.strip() or not ids:
        raise UserError(f"the {side} is empty: it must have text.")
    if len(ids) + 1 > limit:
        raise UserError(
            f"the {side} has {len(ids) + 1} tokens with EOS, more than the {limit} allowed"
            " (config.decode.max_source_length, or config.model.max_positions with learned"
            " positions)."
        )


def score_pairs(
    run: "TrainedModel",
    pairs: Sequence[PairIds],
    progress: Callable[[int, int], None] | None = None,
) -> list[PairScore]:
    """Return one PairScore per pair, in order, independent of the rest of the batch.

    Args:
        progress: called after each batch with (pairs done, total).
    """
    scores: dict[int, PairScore] = {}
    for chunk, batch in pair_batches(run, pairs):
        with mesh_lib.use(run.mesh):
            log_probs_BxT = np.asarray(_token_log_probs(run.model, run.params, batch))
        for i, row in zip(chunk, log_probs_BxT, strict=False):
            target = pairs[i].target
            scores[i] = PairScore(
                tuple(run.tokenizers.target.pieces(target)), tuple(map(float, row[: len(target)]))
            )
        if progress:
            progress(len(scores), len(pairs))
    return [scores[i] for i in range(len(pairs))]


def pair_batches(
    run: "TrainedModel", pairs: Sequence[PairIds]
) -> Iterator[tuple[list[int], dict[str, jax.Array]]]:
    """Yield (numbers of pairs, batch of model inputs), shortest pairs first.

    A batch has one pair per row. Pairs with more than 256 tokens are in smaller batches, so that
    the memory of attention stays constant until each shard has one row.
    """
    shards, longest = (
        mesh_lib.batch_shards(run.mesh),
        [max(len(pair.source), len(pair.target)) for pair in pairs],
    )
    put = functools.partial(jax.device_put, device=mesh_lib.named(run.mesh, mesh_lib.ROWS))
    batch_size = run.config.decode.batch_size
    order = sorted(range(len(pairs)), key=longest.__getitem__)
    for length, group in itertools.groupby(
        order, key=lambda i: round_up(longest[i], SOURCE_LENGTHS)
    ):
        members = list(group)
        rows = shards * max(1, min(batch_size, batch_size * _WHOLE_BATCH**2 // length**2))
        for start in range(0, len(members), rows):
            chunk = members[start : start + rows]
            yield chunk, jax.tree.map(put, rows_of([pairs[i] for i in chunk], rows, length))


def rows_of(
    pairs: Sequence[PairIds], rows: int, length: int | None = None
) -> dict[str, np.ndarray]:
    """Return a model batch of arrays int32 [rows, length] with one pair per row.

    Args:
        length: default the smallest of `SOURCE_LENGTHS` that fits all pairs.
    """
    length = length or round_up(
        max(max(len(p.source), len(p.target)) for p in pairs), SOURCE_LENGTHS
    )
    arrays = {}
    for side in ("source", "target"):
        ids = padded([getattr(p, side) for p in pairs], rows, length)
        arrays[side] = ids
        arrays[f"{side}_segments"] = (ids > 0).astype(np.int32)
        arrays[f"{side}_positions"] = np.where(ids > 0, np.arange(length, dtype=np.int32), 0)
    return arrays


@jax.jit(static_argnums=0)
def _token_log_probs(model: Transformer, params, batch):
    """Return the log-probability of each target token, float32 [B, T]."""
    hidden_BxTxD: Any = model.apply({"params": params}, batch, method="hidden")

    def at_position(hidden_and_target):
        hidden_BxD, target_B = hidden_and_target
        logits_BxV: Any = model.apply({"params": params}, hidden_BxD, method="logits")
        target_logit_B = jnp.take_along_axis(logits_BxV, target_B[:, None], axis=-1)[:, 0]
        return target_logit_B - jax.nn.logsumexp(logits_BxV, axis=-1)

    positions = max(1, _LOGITS_TOKENS // len(hidden_BxTxD))
    by_position = jnp.moveaxis(hidden_BxTxD, 1, 0), batch["target"].T
    return jax.lax.map(at_position, by_position, batch_size=positions).T
