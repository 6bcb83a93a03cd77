"""Hidden states of a trained model, and the file that holds them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config import Model
from t2t_flax.config.data_keys import EOS
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.evaluation.scoring import PairIds, pair_batches
from t2t_flax.files import atomic_file
from t2t_flax.models.transformer import Transformer

EMBEDDINGS = "embeddings"


class Layer(NamedTuple):
    """Layer name as users write it, "encoder/2", and the module of its output."""

    name: str
    module: str

    @property
    def side(self) -> str:
        return "source" if self.name.startswith("encoder") else "target"


def layers_of(names: str, model: Model) -> list[Layer]:
    """Return the layers of --layers, such as "encoder/2,decoder/0".

    Raises UserError for a layer that the model does not have.
    """
    found, counts = [], {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers}
    for name in dict.fromkeys(map(str.strip, names.split(","))):
        stack, _, which = name.partition("/")
        if which == EMBEDDINGS and stack in counts:
            found.append(Layer(name, "source_dropout" if stack == "encoder" else "target_dropout"))
        elif which.isdecimal() and int(which) < counts.get(stack, 0):
            found.append(Layer(f"{stack}/{int(which)}", f"{stack}_{int(which)}"))
        else:
            every = " or ".join(
                f"{stack}/0 to {stack}/{count - 1}" for stack, count in counts.items()
            )
            raise UserError(
                f"--layers: {name!r} is no layer of this model: expected {every}, counted from 0,"
                f" or encoder/{EMBEDDINGS} or decoder/{EMBEDDINGS}, the input of the first one."
            )
    return found


class States(NamedTuple):
    """Hidden states of a line: float32 [tokens, D] by layer name, and its tokens.

    The tokens are the ones of each side that was read, EOS included. Row t of a decoder's layer
    predicts target token t.
    """

    hidden: dict[str, np.ndarray]
    tokens: dict[str, list[str]]


def hidden_states(
    run: TrainedModel,
    layers: Sequence[Layer],
    lines: Sequence[tuple[str, str | None]],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[States | UserError]:
    """Yield the states of each source line in order.

    Each has its forced target if there are targets. The states do not depend on other lines. A line
    that cannot be read yields an error in its place, see `TrainedModel.encode_pair`. Raises
    UserError as `TrainedModel.in_language`, and for layers of a decoder without targets.
    """
    run.check_single("inspecting layers")
    forced = any(target is not None for _, target in lines)
    if not forced and any(layer.side == "target" for layer in layers):
        raise UserError("layers of the decoder need the targets that it reads: give --target=FILE.")
    encoded: list[PairIds | UserError] = []
    for source, target in lines:
        run.in_language(source)  # a missing language affects all lines
        try:
            encoded.append(
                run.encode_pair(source, target)
                if target is not None
                else _source_alone(run, source)
            )
        except UserError as error:
            encoded.append(error)
    pairs, found = [ids for ids in encoded if isinstance(ids, PairIds)], {}
    modules = tuple(layer.module for layer in layers)
    for chunk, batch in pair_batches(pairs, run.config.decode.batch_size, run.mesh):
        with mesh_lib.use(run.mesh):
            outputs = jax.device_get(_outputs(run.model, modules, forced, run.params, batch))
        for row, i in enumerate(chunk):
            lengths = {side: len(getattr(pairs[i], side)) for side in ("source", "target")}
            each = zip(layers, outputs, strict=True)
            found[i] = {layer.name: x[row, : lengths[layer.side]] for layer, x in each}
        progress(len(found), len(pairs))
    number = 0
    for ids in encoded:
        if isinstance(ids, UserError):
            yield ids
            continue
        tokens = {"source": list(run.tokenizers.source.pieces(ids.source))}
        if forced:
            tokens["target"] = list(run.tokenizers.target.pieces(ids.target))
        yield States(found[number], tokens)
        number += 1


def _source_alone(run: TrainedModel, source: str) -> PairIds:
    return PairIds(run.encode_source(source), [EOS])  # the decoder is not computed


@jax.jit(static_argnums=(0, 1, 2))
def _outputs(
    model: Transformer,
    modules: tuple[str, ...],
    decoder: bool,
    params: Any,
    batch: dict[str, jax.Array],
):
    """Return the output of each module, float32 [B, L, D]."""
    found: dict[str, jax.Array] = {}

    def keep(call, args, kwargs, context):
        out = call(*args, **kwargs)
        if context.method_name == "__call__":
            found["/".join(context.module.path)] = out
        return out

    source = [batch[f"source{part}"] for part in ("", "_segments", "_positions")]
    with nn.intercept_methods(keep):
        plain = model.clone(remat="none")  # values may leave layers without remat
        if decoder:
            plain.apply({"params": params}, batch, method="hidden")
        else:
            plain.apply({"params": params}, *source, method="encode")
    return [found[name].astype(jnp.float32) for name in modules]


def save(
    path: str, layers: Sequence[Layer], lines: Sequence[States | None], width: int, *, targets: bool
) -> None:
    """Write the states of lines to an .npz; None = a line without rows.

    NAME of a layer: float32 [tokens of all lines, D]. source_tokens, target_tokens: their strings.
    source_offsets, target_offsets: int64 [lines + 1]; the rows of line i are offsets[i] to
    offsets[i + 1].
    """
    arrays: dict[str, Any] = {}
    for layer in layers:
        found = [
            np.zeros((0, width), np.float32),
            *(line.hidden[layer.name] for line in lines if line),
        ]
        arrays[layer.name] = np.concatenate(found)
    for side in ("source", "target") if targets else ("source",):
        tokens = [line.tokens[side] if line else [] for line in lines]
        arrays[f"{side}_offsets"] = np.cumsum([0, *map(len, tokens)])
        arrays[f"{side}_tokens"] = np.array([token for each in tokens for token in each], np.str_)
    with atomic_file(path) as file:
        np.savez(file, **arrays)
