"""Parameter names, feature order and supported keys of other programs' models.

One table of the names of a layer's parameters serves reading and writing. Their linear weights are
[out, in], ours [in, out] with an axis of heads; some stack several of our maps along their outputs.
The features of the residual stream may have any order in which all matrices agree: Marian has all
sines before all cosines where the paper interleaves them, with the same wavelengths.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from t2t_flax.config import Model
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop.imported import NamedArrays
from t2t_flax.extensions.interop.safetensors_file import flatten, unflatten
from t2t_flax.models.embeddings import sinusoid_halves, sinusoid_interleaved


@dataclasses.dataclass(frozen=True)
class LayerNames:
    """Names of a layer's parameters.

    Args:
        maps: (their name, our paths, stacked along the outputs).
        norms: (their name, our path).
        scale, shift: names of a norm's parameters.
    """

    maps: tuple[tuple[str, tuple[str, ...]], ...]
    norms: tuple[tuple[str, str], ...]
    separator: str
    scale: str
    shift: str

    def write(
        self, layer: Mapping[str, Any], *, always_bias: bool = False
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (their name, float32 array) for each of a layer's parameters.

        Args:
            always_bias: write zeros where ours has no bias.
        """
        for theirs, ours in self.maps:
            block, name = ours[0].split("/")
            if name not in layer.get(block, {}):
                continue
            parts = [layer[block][path.split("/")[1]] for path in ours]
            inputs = 2 if name == "out" else 1
            kernels = [_float32(part["kernel"]) for part in parts]
            rows = [kernel.reshape(math.prod(kernel.shape[:inputs]), -1).T for kernel in kernels]
            weight = np.ascontiguousarray(np.concatenate(rows))
            yield f"{theirs}{self.separator}weight", weight
            if "bias" in parts[0]:
                biases = np.concatenate([_float32(part["bias"]).reshape(-1) for part in parts])
                yield f"{theirs}{self.separator}bias", biases
            elif always_bias:
                yield f"{theirs}{self.separator}bias", np.zeros(len(weight), np.float32)
        for theirs, name in self.norms:
            if name in layer:
                norm = layer[name]["norm"]
                yield f"{theirs}{self.separator}{self.scale}", _float32(norm["scale"])
                if "bias" in norm:
                    yield f"{theirs}{self.separator}{self.shift}", _float32(norm["bias"])

    def read(
        self, arrays: NamedArrays, prefix: str, model: Model, *, cross: bool
    ) -> dict[str, Any]:
        """Read the parameters of the layer whose arrays begin with `prefix`.

        Raises UserError for an array that is missing or has another shape.

        Args:
            cross: whether it attends over the source, too.
        """
        gated = model.feed_forward == "gated"
        layer: dict[str, Any] = {}
        for theirs, ours in self.maps:
            block, name = ours[0].split("/")
            feed_forward = block == "feed_forward"
            if (
                block == "cross_attention"
                and not cross
                or feed_forward
                and gated == name.startswith("Einsum")
            ):
                continue
            biased = not gated if feed_forward else model.attention_bias
            for path, part in zip(
                ours, self._read_maps(arrays, f"{prefix}{theirs}", ours, model, biased), strict=True
            ):
                layer.setdefault(block, {})[path.split("/")[1]] = part
        for theirs, norm in self.norms:
            if norm != "residual_cross" or cross:
                layer[norm] = {"norm": self.read_norm(arrays, f"{prefix}{theirs}", model)}
        return layer

    def _read_maps(
        self, arrays: NamedArrays, name: str, ours: tuple[str, ...], model: Model, biased: bool
    ) -> list[dict[str, np.ndarray]]:
        into, out = _shape(ours[0].split("/")[1], model)
        rows = math.prod(out)
        weight = arrays.take(f"{name}{self.separator}weight", len(ours) * rows, math.prod(into))
        # Copies, so that nothing refers to the array of the file.
        maps = [
            {"kernel": np.ascontiguousarray(part.T).reshape(*into, *out)}
            for part in np.split(weight, len(ours))
        ]
        if biased:
            shifts = np.split(
                arrays.take(f"{name}{self.separator}bias", len(ours) * rows), len(ours)
            )
            maps = [
                part | {"bias": shift.reshape(out)}
                for part, shift in zip(maps, shifts, strict=True)
            ]
        return maps

    def read_norm(self, arrays: NamedArrays, name: str, model: Model) -> dict[str, np.ndarray]:
        """Read the parameters of a norm."""
        scale = {"scale": arrays.take(f"{name}{self.separator}{self.scale}", model.d_model)}
        if model.norm_type == "rmsnorm":
            return scale
        return scale | {"bias": arrays.take(f"{name}{self.separator}{self.shift}", model.d_model)}


def _shape(name: str, model: Model) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (input axes, output axes) of one of our kernels."""
    width: tuple[int, ...] = (model.d_model,)
    hidden: tuple[int, ...] = (model.d_ff,)
    heads: tuple[int, ...] = (model.num_heads, model.d_model // model.num_heads)
    if name == "out":
        return heads, width
    if name in ("query", "key", "value"):
        return width, heads
    return (width, hidden) if name in ("Einsum_0", "gate", "up") else (hidden, width)


def _float32(x: Any) -> np.ndarray:
    return np.array(x, np.float32)  # a copy: quantization scales it in place


MARIAN = LayerNames(
    (
        *(
            (
                f"{theirs}.{part[0]}_proj" if part != "out" else f"{theirs}.out_proj",
                (f"{ours}/{part}",),
            )
            for theirs, ours in (
                ("self_attn", "self_attention"),
                ("encoder_attn", "cross_attention"),
            )
            for part in ("query", "key", "value", "out")
        ),
        ("fc1", ("feed_forward/Einsum_0",)),
        ("fc2", ("feed_forward/Einsum_1",)),
    ),
    (
        ("self_attn_layer_norm", "residual_attention"),
        ("encoder_attn_layer_norm", "residual_cross"),
        ("final_layer_norm", "residual_ffn"),
    ),
    ".",
    "weight",
    "bias",
)
MARIAN_KEYS = {
    "d_model": "d_model",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "d_ff",
    "decoder_ffn_dim": "d_ff",
    "dropout": "dropout",
    "attention_dropout": "dropout_attention",
    "activation_dropout": "dropout_ffn",
}
"""Keys of Marian's config.json and our keys of `model`."""
CTRANSLATE2 = LayerNames(
    (
        (
            "self_attention/linear_0",
            ("self_attention/query", "self_attention/key", "self_attention/value"),
        ),
        ("self_attention/linear_1", ("self_attention/out",)),
        ("attention/linear_0", ("cross_attention/query",)),
        ("attention/linear_1", ("cross_attention/key", "cross_attention/value")),
        ("attention/linear_2", ("cross_attention/out",)),
        ("ffn/linear_0", ("feed_forward/Einsum_0",)),
        ("ffn/linear_1", ("feed_forward/Einsum_1",)),
        ("ffn/linear_0", ("feed_forward/gate",)),
        ("ffn/linear_0_noact", ("feed_forward/up",)),
        ("ffn/linear_1", ("feed_forward/down",)),
    ),
    (
        ("self_attention/layer_norm", "residual_attention"),
        ("attention/layer_norm", "residual_cross"),
        ("ffn/layer_norm", "residual_ffn"),
    ),
    "/",
    "gamma",
    "beta",
)

_TOLERANCE = 2e-3  # error of float32 sines at angles in the thousands
_FIRST_AXIS = ("query", "key", "value", "Einsum_0", "gate", "up")
"""Linear maps that read the residual stream; the others write to it."""


def sines_first(d_model: int) -> np.ndarray:
    """Return int [D]: our feature at each place of a model with all sines first.

    In such a model all sines come before all cosines.
    """
    return np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])


def reordered(params: Any, order: np.ndarray) -> dict[str, Any]:
    """Return the model with reordered features.

    Feature k is feature order[k] of `params`.
    """
    out = {}
    for path, x in flatten(params).items():
        *parents, name = path.split("/")
        module = parents[-1] if parents else ""
        inner = name == "bias" and module in _FIRST_AXIS  # its axes are heads or hidden units
        axis = 0 if name == "kernel" and module in _FIRST_AXIS else -1
        out[path] = x if inner or name == "output_bias" else np.take(x, order, axis)
    return unflatten(out)


class Positions(NamedTuple):
    """Values of model.position and model.position_offset.

    Args:
        sines_first: whether features are in Marian's order.
    """

    position: str
    position_offset: int = 0
    sines_first: bool = False


def recognize_positions(table: np.ndarray) -> Positions | None:
    """Return the scheme whose vectors a table [positions, D] holds.

    None for any other table, such as a learned one.
    """
    count, d_model = table.shape
    if not np.any(table):
        return Positions("none")
    if d_model % 2:
        return None
    for offset in range(3):
        at = np.arange(count) + offset
        interleaved, halves = (
            np.asarray(f(at, d_model)) for f in (sinusoid_interleaved, sinusoid_halves)
        )
        for known, positions in (
            (interleaved, Positions("sinusoid_interleaved", offset)),
            (halves, Positions("sinusoid_halves", offset)),
            (interleaved[:, sines_first(d_model)], Positions("sinusoid_interleaved", offset, True)),
        ):
            if np.allclose(table, known, rtol=0, atol=_TOLERANCE):
                return positions
    return None


def require_supported(
    config: Model, supported: Mapping[str, tuple[Any, ...]], program: str, advice: str
) -> None:
    """Raise UserError, naming the key, for a value that is not supported.

    `supported` lists the values of each key. It is also raised for heads of other widths than
    d_model / num_heads, and for another number of key heads.
    """
    width = config.d_model // config.num_heads
    heads = {"num_kv_heads": (0, config.num_heads), "d_k": (0, width), "d_v": (0, width)}
    for key, values in (dict(supported) | heads).items():
        value = getattr(config, key)
        if value not in values:
            allowed = " or ".join(dict.fromkeys(map(str, values)))
            raise UserError(
                f"model.{key} = {value} cannot be exported to {program}, which takes {allowed}"
                f" there. {advice}"
            )
