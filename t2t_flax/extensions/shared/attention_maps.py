"""Attention weights of every layer and head for a pair."""

import dataclasses
from typing import Any

import jax
import numpy as np

from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.evaluation.scoring import rows_of
from t2t_flax.models.attention import SelfAttention, mixer_class
from t2t_flax.models.transformer import Transformer
from t2t_flax.tasks import task_of


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """Attention weights, float32; rows sum to 1.

    L layers, N heads, S source and T target tokens, EOS included. encoder [L, N, S, S], decoder [L,
    N, T, T], cross [L, N, T, S]: rows are queries, columns are keys. Decoder row t predicts target
    token t, so its input is token t - 1. source_tokens label the encoder and the columns of cross;
    target_tokens label the decoder's rows; decoder_tokens label its columns.
    """

    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray
    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]

    @property
    def decoder_tokens(self) -> tuple[str, ...]:
        """Decoder inputs: the start token, then the target without its last token."""
        return ("<start>", *self.target_tokens[:-1])


def attend(run: TrainedModel, source: str, target: str | None = None) -> AttentionMaps:
    """Return the attention weights of a teacher-forced pair.

    Without a target, the pair is the source with the run's own translation. Raises UserError for an
    empty or too long side, for a model without self-attention, and as `TrainedModel.in_language`.
    """
    run.check_single("attention")
    if mixer_class(run.config.model).NAME != SelfAttention.NAME:
        raise UserError(
            f"config.model.mixer = {run.config.model.mixer}: this run has no self-attention weights"
            " to show."
        )
    if target is None:
        (translation,) = run.translate([source])
        target = task_of(run.config).postprocess(source, translation.text)
        if source.strip() and not target.strip():
            raise UserError("the run's own translation of this source is empty: give a --target.")
    pair = run.encode_pair(source, target)
    batch = {name: jax.numpy.asarray(x) for name, x in rows_of([pair], 1).items()}
    _, state = _forward(run.model, run.params, batch)
    intermediates, s, t = state["intermediates"], len(pair.source), len(pair.target)

    def stack(layers: str, module: str, rows: int, columns: int) -> np.ndarray:
        count = sum(name.startswith(f"{layers}_") for name in intermediates)
        weights = [intermediates[f"{layers}_{i}"][module]["weights"][0][0] for i in range(count)]
        maps = [np.asarray(w)[:, :rows, :columns] for w in weights]
        return (
            np.stack(maps)
            if maps
            else np.zeros((0, run.config.model.num_heads, rows, columns), np.float32)
        )

    return AttentionMaps(
        encoder=stack("encoder", SelfAttention.NAME, s, s),
        decoder=stack("decoder", SelfAttention.NAME, t, t),
        cross=stack("decoder", "cross_attention", t, s),
        source_tokens=tuple(run.tokenizers.source.pieces(pair.source)),
        target_tokens=tuple(run.tokenizers.target.pieces(pair.target)),
    )


@jax.jit(static_argnums=0)
def _forward(model: Transformer, params: Any, batch):
    return model.apply({"params": params}, batch, method="hidden", mutable=["intermediates"])
