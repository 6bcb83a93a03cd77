"""Attention weights of every layer and head for one pair (3.2.3): arrays, statistics per head, a plot."""

import dataclasses
import io
from typing import Any

import jax
import numpy as np
from etils import epath

from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.scoring import PairIds, rows_of
from t2t_flax.errors import UserError, require
from t2t_flax.filesystem import atomic_write
from t2t_flax.models.transformer import Transformer

KINDS = ("encoder", "decoder", "cross")
LABELS = ("source_tokens", "target_tokens", "decoder_tokens")


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """float32 weights whose rows sum to 1. L layers, N heads, S source and T target tokens, EOS included.

    encoder [L, N, S, S], decoder [L, N, T, T], cross [L, N, T, S]: rows are queries, columns are keys. Decoder
    row t predicts target token t, so its input is token t - 1. source_tokens label the encoder and the columns
    of cross; target_tokens label the decoder's rows; decoder_tokens label its columns.
    """

    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray
    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]

    @property
    def decoder_tokens(self) -> tuple[str, ...]:
        """The decoder's inputs: the start token, then the target without its last token."""
        return ("<start>", *self.target_tokens[:-1])

    def entropy(self, kind: str) -> np.ndarray:
        """[L, N]: mean entropy of each head's rows in nats; 0 = all weight on one token."""
        weights = getattr(self, kind)
        logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
        return -(weights * logs).sum(-1).mean(-1)

    def mean_distance(self, kind: str) -> np.ndarray:
        """[L, N]: expected |row - column| under the weights, in tokens."""
        weights = getattr(self, kind)
        rows, columns = (np.arange(n) for n in weights.shape[-2:])
        return (weights * np.abs(rows[:, None] - columns)).sum(-1).mean(-1)

    def alignment(self) -> np.ndarray:
        """[T, S]: cross-attention averaged over layers and heads."""
        return self.cross.mean((0, 1))

    def save(self, path: epath.PathLike) -> None:
        """Writes an .npz with the three arrays and their token labels."""
        buffer = io.BytesIO()
        labels = {name: np.array(getattr(self, name)) for name in LABELS}
        np.savez_compressed(buffer, **{kind: getattr(self, kind) for kind in KINDS}, **labels)
        atomic_write(path, buffer.getvalue())

    def draw(self, path: epath.PathLike) -> None:
        """Plots one row of heads per layer of each kind. Raises UserError if matplotlib is not installed."""
        check_picture(path)
        from matplotlib.figure import Figure

        layers = [(kind, layer) for kind in KINDS for layer in range(len(getattr(self, kind)))]
        heads = max(getattr(self, kind).shape[1] for kind, _ in layers)
        side = 0.6 + 0.16 * max(len(self.source_tokens), len(self.target_tokens))
        figure = Figure(figsize=(side * heads + 1, side * len(layers) + 1), layout="constrained")
        axes = figure.subplots(len(layers), heads, squeeze=False)
        for row, (kind, layer) in zip(axes, layers, strict=True):
            columns = self.decoder_tokens if kind == "decoder" else self.source_tokens
            rows = self.source_tokens if kind == "encoder" else self.target_tokens
            for head, axis in enumerate(row):
                axis.imshow(getattr(self, kind)[layer, head], vmin=0, vmax=1, cmap="Blues", aspect="auto")
                axis.set_title(f"{kind} {layer + 1}, head {head + 1}", fontsize=7)
                axis.set_xticks(range(len(columns)), columns, rotation=90, fontsize=5)
                axis.set_yticks(range(len(rows)), rows if head == 0 else [], fontsize=5)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=epath.Path(path).suffix.removeprefix("."), dpi=120)
        atomic_write(path, buffer.getvalue())


def check_picture(path: epath.PathLike) -> None:
    """Raises UserError for an unsupported file type, or if matplotlib is not installed."""
    if epath.Path(path).suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"{path}: a picture is a .png, .pdf or .svg file.")
    require("matplotlib", "plots", "drawing a picture")


def attention_maps(model: Transformer, params: Any, tokenizers: TokenizerPair, pair: PairIds) -> AttentionMaps:
    """Attention weights of a teacher-forced pair. Raises UserError for a model without self-attention."""
    if model.config.mixer != "attention":
        raise UserError(f"config.model.mixer = {model.config.mixer}: this run has no self-attention weights to show.")
    batch = {name: jax.numpy.asarray(x) for name, x in rows_of([pair], 1).items()}
    _, state = _forward(model, params, batch)
    intermediates, s, t = state["intermediates"], len(pair.source), len(pair.target)

    def stack(layers: str, module: str, rows: int, columns: int) -> np.ndarray:
        count = sum(name.startswith(f"{layers}_") for name in intermediates)
        weights = [intermediates[f"{layers}_{i}"][module]["weights"][0][0] for i in range(count)]
        maps = [np.asarray(w)[:, :rows, :columns] for w in weights]
        return np.stack(maps) if maps else np.zeros((0, model.config.num_heads, rows, columns), np.float32)

    return AttentionMaps(
        encoder=stack("encoder", "self_attention", s, s),
        decoder=stack("decoder", "self_attention", t, t),
        cross=stack("decoder", "cross_attention", t, s),
        source_tokens=tuple(tokenizers.source.pieces(pair.source)),
        target_tokens=tuple(tokenizers.target.pieces(pair.target)),
    )


@jax.jit(static_argnums=0)
def _forward(model: Transformer, params, batch):
    return model.apply({"params": params}, batch, method="hidden", mutable=["intermediates"])
