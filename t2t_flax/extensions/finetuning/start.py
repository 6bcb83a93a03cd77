"""Initial parameters of a new run, taken from another model.

config.finetuning.init_from names another run or an exported model;
config.finetuning.init_vocabulary fills tables of one vocabulary from the tables of another.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config.data_keys import EOS, PAD, UNK
from t2t_flax.config.overrides import check_same_model
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.mesh import Params
from t2t_flax.errors import UserError
from t2t_flax.extensions.finetuning import of, parse_init_checkpoint
from t2t_flax.model_forms import run_folder
from t2t_flax.models.transformer import Transformer
from t2t_flax.training.checkpoint_selection import (
    CheckpointChoice,
    mean,
    named_steps,
    restore_chosen,
)
from t2t_flax.training.parts import TrainingSetup
from t2t_flax.training.train_state import abstract_params, make_model
from t2t_flax.training.workdir import read_model_config

SPREAD = 0.1
"""Share of the regular initialization that is added to the row of a new piece."""


def start_params(
    setup: TrainingSetup,
    own: Params,
    group: ProcessGroup | None = None,
    say: Callable[[str], None] = print,
) -> Params:
    """Return the parameters of the run that finetuning.init_from names.

    They are on the devices of the new run. Raises UserError for another model, and if there are no
    parameters.

    Args:
        own: the run's initial parameters.
    """
    config, keys = setup.config, of(setup.config)
    workdir = run_folder(keys.init_from)
    stored = read_model_config(workdir)
    if stored is None:
        raise UserError(
            f"config.finetuning.init_from = {workdir} holds no run: it has no config.json."
        )
    check_same_model(stored, config, f"config.finetuning.init_from = {workdir}")
    old, new = TokenizerPair.load(workdir / "tokenizer"), setup.corpus.tokenizers
    abstract = abstract_params(config.mesh, make_model(config, *old.vocab_sizes), setup.mesh)
    choice = CheckpointChoice(**parse_init_checkpoint(keys.init_checkpoint))
    try:
        part = mean(restore_chosen(workdir, stored, choice, abstract, old.digest, group))
    except UserError as error:
        raise UserError(
            f"config.finetuning.init_checkpoint = {keys.init_checkpoint}: {error}"
        ) from None
    say(f"parameters start from {workdir}, {named_steps(part.steps)}")
    if old.digest == new.digest:
        return part.params
    try:
        params, counts = tables_by_piece(setup.model, own, part.params, old, new)
    except UserError as error:
        raise UserError(f"config.finetuning.init_vocabulary = by_piece: {error}") from None
    say(f"vocabulary: {'; '.join(counts)}")
    return params


def rows_by_piece(old: Tokenizer, new: Tokenizer) -> np.ndarray:
    """Return int32 [new.vocab_size]: the id of the same piece in `old`, or -1.

    PAD, EOS and UNK are the same everywhere. Raises UserError if no other piece is known, because
    the tokenizers differ in kind.
    """
    ids = {piece: i for i, piece in enumerate(old.pieces(range(old.vocab_size)))}
    rows = np.array([ids.get(piece, -1) for piece in new.pieces(range(new.vocab_size))], np.int32)
    special = [PAD, EOS, UNK]
    rows[special] = special
    if (rows >= 0).sum() == len(special):
        raise UserError(
            "config.finetuning.init_vocabulary = by_piece: no piece is in both vocabularies. Use"
            " tokenizers of the same kind."
        )
    return rows


def tables_by_piece(
    model: Transformer,
    own: Params,
    other: Params,
    old: TokenizerPair,
    new: TokenizerPair,
) -> tuple[Params, list[str]]:
    """Return (parameters with the new vocabulary, known pieces per vocabulary).

    The parameters are `other` with tables and output bias of the new vocabulary. A new piece gets
    the mean of the old rows, so that it is no more likely than an average piece was (Hewitt 2021),
    plus SPREAD of its initialization, so that new pieces differ. Raises UserError as
    `rows_by_piece`.

    Args:
        own: the run's initial parameters, with the shapes and shardings of the result.
    """
    sides = {"source": (old.source, new.source), "target": (old.target, new.target)}
    rows = {side: rows_by_piece(*pair) for side, pair in sides.items()}
    tables = {}
    # Same order on all processes.
    for name in dict.fromkeys((*model.table_params, *model.output_params)):
        side = "source" if name == "source_embedding" else "target"
        fill = functools.partial(_filled, rows[side], sides[side][0].vocab_size)
        tables[name] = jax.tree.map(fill, own[name], other[name])
    shown = {"target": "pieces"} if new.joint else {side: f"{side} pieces" for side in sides}
    counts = [
        f"{(rows[side] >= 0).sum():,} of {len(rows[side]):,} {words} known,"
        f" {(rows[side] < 0).sum():,} new"
        for side, words in shown.items()
    ]
    return {**other, **tables}, counts


def _filled(rows: np.ndarray, old_size: int, own: jax.Array, old: jax.Array) -> jax.Array:
    """Return `own` [rows, ...] with the known rows of `old`.

    Rows that pad the vocabulary count as new.
    """
    index = np.full(len(own), -1, np.int32)
    index[: len(rows)] = rows
    known = (index >= 0).reshape(-1, *(1,) * (own.ndim - 1))

    def fill(own, old):
        new = old[:old_size].mean(0) + SPREAD * own
        return jnp.where(known, jnp.take(old, np.maximum(index, 0), axis=0), new)

    return jax.jit(fill, out_shardings=own.sharding)(own, old)
