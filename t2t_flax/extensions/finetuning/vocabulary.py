"""Tables of one vocabulary from those of another, see config.finetuning.init_vocabulary."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.models.transformer import Transformer

SPREAD = 0.1
"""Share of its own initialization that is added to the row of a new piece."""


def rows_by_piece(old: Tokenizer, new: Tokenizer) -> np.ndarray:
    """int32 [new.vocab_size]: the id of the same piece in `old`, or -1. PAD, EOS and UNK are the same everywhere. Raises
    UserError if no other piece is known: the tokenizers are of different kinds.
    """
    ids = {piece: i for i, piece in enumerate(old.pieces(range(old.vocab_size)))}
    rows = np.array([ids.get(piece, -1) for piece in new.pieces(range(new.vocab_size))], np.int32)
    special = [PAD, EOS, UNK]
    rows[special] = special
    if (rows >= 0).sum() == len(special):
        raise UserError("no piece is in both vocabularies: are the tokenizers of the same kind?")
    return rows


def tables_by_piece(
    model: Transformer, own: dict[str, Any], other: dict[str, Any], old: TokenizerPair, new: TokenizerPair
) -> tuple[dict[str, Any], list[str]]:
    """(`other` with tables and output bias of the new vocabulary, the count of known pieces for each vocabulary).

    own: the run's initial parameters, with the shapes and shardings of the result. A piece that is new gets the mean of the old
    rows, so that it is no more likely than an average piece was (Hewitt 2021), plus SPREAD of its initialization, so that
    new pieces differ. Raises UserError as `rows_by_piece`.
    """
    sides = {"source": (old.source, new.source), "target": (old.target, new.target)}
    rows = {side: rows_by_piece(*pair) for side, pair in sides.items()}
    tables = {}
    for name in dict.fromkeys((*model.table_params, *model.output_params)):  # all processes in the same order
        side = "source" if name == "source_embedding" else "target"
        fill = functools.partial(_filled, rows[side], sides[side][0].vocab_size)
        tables[name] = jax.tree.map(fill, own[name], other[name])
    shown = {"target": "pieces"} if new.joint else {side: f"{side} pieces" for side in sides}
    counts = [
        f"{(rows[side] >= 0).sum():,} of {len(rows[side]):,} {words} known, {(rows[side] < 0).sum():,} new"
        for side, words in shown.items()
    ]
    return other | tables, counts


def _filled(rows: np.ndarray, old_size: int, own: jax.Array, old: jax.Array) -> jax.Array:
    """`own` [rows, ...] with the known rows of `old`; those that pad the vocabulary count as new."""
    index = np.full(len(own), -1, np.int32)
    index[: len(rows)] = rows
    known = (index >= 0).reshape(-1, *(1,) * (own.ndim - 1))

    def fill(own, old):
        new = old[:old_size].mean(0) + SPREAD * own
        return jnp.where(known, jnp.take(old, np.maximum(index, 0), axis=0), new)

    return jax.jit(fill, out_shardings=own.sharding)(own, old)
