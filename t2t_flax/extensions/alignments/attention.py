"""Word-to-word attention of the decoder to the source, summed over pieces of words."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config.data_keys import PAD
from t2t_flax.data.tokenizers import Frame
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.evaluation.scoring import PairIds, pair_batches
from t2t_flax.extensions.alignments import Alignments
from t2t_flax.extensions.alignments.words import WordTokens, tokens_of
from t2t_flax.models.transformer import Transformer


class Head(NamedTuple):
    """Attention head that aligns words.

    A layer and a head, from 1, or the mean of all (0), at the position that predicts or reads a
    word.
    """

    layer: int = 0
    head: int = 0
    row: str = "predicts"

    def __str__(self) -> str:
        layer = f"layer {self.layer}" if self.layer else "all layers"
        return f"{layer}, {f'head {self.head}' if self.head else 'mean of heads'}, {self.row}"

    @property
    def flags(self) -> str:
        """Config overrides that select this head."""
        return " ".join(
            f"--config.alignments.{name}={value}" for name, value in self._asdict().items()
        )


def head_in(config: Any) -> Head | None:
    """Return the head that the keys of a config name."""
    group = Alignments.of(config)
    return Head(group.layer, group.head, group.row) if group.layer else None


class Pair(NamedTuple):
    """A source and its translation.

    Args:
        source: text as the model reads it.
        target: its translation.
        line: source as the user gave it, without added control symbols.
    """

    source: str
    target: str
    line: str = ""


def word_weights(run: TrainedModel, pairs: Sequence[Pair], head: Head) -> list[np.ndarray]:
    """Return float32 [target words, source words] for each pair.

    An entry is the share of its attention that a target word gives to a source word, averaged over
    the pieces of the target word. EOS, control symbols and words that are cut off are excluded. A
    pair with an empty side has zeros.
    """
    found: dict[int, np.ndarray] = {}
    for i, source, target, weights in _attention(run, pairs, head):
        found[i] = _of_words(weights, source, target, head.row)
    sizes = ((len(pair.target.split()), len((pair.line or pair.source).split())) for pair in pairs)
    return [found.get(i, np.zeros(size, np.float32)) for i, size in enumerate(sizes)]


def weights_of_heads(
    run: TrainedModel, pairs: Sequence[Pair]
) -> Iterator[tuple[int, dict[Head, np.ndarray]]]:
    """Yield (index of a pair, its `word_weights` by head), including means of heads.

    The pairs come in any order, without the ones that have an empty side.
    """
    for i, source, target, weights in _attention(run, pairs, None):
        layers, heads = weights.shape[:2]
        every = {
            Head(n + 1, h + 1): weights[n, h]
            for n, h in itertools.product(range(layers), range(heads))
        }
        every |= {Head(n + 1): weights[n].mean(0) for n in range(layers)} | {
            Head(): weights.mean((0, 1))
        }
        yield (
            i,
            {
                head._replace(row=row): _of_words(one, source, target, row)
                for head, one in every.items()
                for row in ("predicts", "reads")
            },
        )


def is_cut(run: TrainedModel, pair: Pair) -> bool:
    """Return True if a side has more tokens than the model looks at."""
    return any(side.cut for side in _sides(run, pair))


def _of_words(weights: np.ndarray, source: WordTokens, target: WordTokens, row: str) -> np.ndarray:
    first, count = int(row == "reads"), len(target.ids) - 1
    members = target.matrix[:, :count]
    of_pieces = weights[first : first + count, : len(source.ids)]
    return members @ of_pieces @ source.matrix.T / np.maximum(members.sum(1, keepdims=True), 1)


def _attention(
    run: TrainedModel, pairs: Sequence[Pair], head: Head | None
) -> Iterator[tuple[int, Any, Any, np.ndarray]]:
    """Yield (index of a pair, its tokens, its attention).

    Pairs with an empty side are left out. The attention is [..., T, S] of the given head, or [L, N,
    T, S] of all heads.
    """
    run.check_single("alignment")
    sides = [_sides(run, pair) for pair in pairs]
    # A source that is EOS alone has nothing to align.
    chosen = [
        i for i, both in enumerate(sides) if all(max(side.words, default=-1) >= 0 for side in both)
    ]
    ids = [PairIds(sides[i][0].ids, sides[i][1].ids) for i in chosen]
    for chunk, batch in pair_batches(ids, run.config.decode.batch_size, run.mesh):
        with mesh_lib.use(run.mesh):
            weights = np.asarray(_cross_attention(run.model, run.params, batch, head))
        for number, own in zip(chunk, weights, strict=False):
            i = chosen[number]
            yield i, *sides[i], own


def _sides(run: TrainedModel, pair: Pair) -> tuple[WordTokens, WordTokens]:
    tokenizers, limit = run.tokenizers, run.max_source_length
    source = run.in_language(pair.source)
    symbols, text = tokenizers.source.split(source)
    none = Frame(symbols, [], PAD)
    before, after, start = tokenizers.source.frame(symbols) if text.strip() else none
    return (
        tokens_of(
            tokenizers.source,
            source,
            line=pair.line or pair.source,
            limit=limit,
            eos=run.config.data.source_eos,
            before=before,
            after=after,
        ),
        tokens_of(
            tokenizers.target, pair.target, limit=limit, before=[start] if start != PAD else None
        ),
    )


@jax.jit(static_argnums=(0, 3))
def _cross_attention(
    model: Transformer, params: Any, batch: dict[str, jax.Array], head: Head | None
) -> jax.Array:
    """Return the decoder's attention weights to the source.

    float32 [B, T, S] for one head, [B, L, N, T, S] for all.
    """
    _, state = model.apply({"params": params}, batch, method="hidden", mutable=["intermediates"])
    layers = [
        state["intermediates"][f"decoder_{i}"]["cross_attention"]["weights"][0]
        for i in range(model.config.num_decoder_layers)
    ]
    if head is None:
        return jnp.stack(layers, 1)
    if not head.layer:
        return jnp.stack(layers, 1).mean((1, 2))
    weights = layers[head.layer - 1]
    return weights[:, head.head - 1] if head.head else weights.mean(1)


def require_translation(run: TrainedModel) -> None:
    """Raise UserError for a run whose outputs are not words of a translation."""
    if run.config.data.task != "translation":
        raise UserError(
            f"word alignments are for data.task = translation, not {run.config.data.task}."
        )
