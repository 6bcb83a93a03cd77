"""How other programs name the parameters of a layer, in one table for reading and writing.

Their linear weights are [out, in], ours [in, out] with an axis of heads; some stack several of our maps along their outputs.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2t_flax.config import Model
from t2t_flax.extensions.interop.named_arrays import NamedArrays


@dataclasses.dataclass(frozen=True)
class LayerNames:
    """maps: (their name, our paths, stacked along the outputs). norms: (their name, our path). scale, shift: of a norm."""

    maps: tuple[tuple[str, tuple[str, ...]], ...]
    norms: tuple[tuple[str, str], ...]
    separator: str
    scale: str
    shift: str

    def write(self, layer: Mapping[str, Any], *, always_bias: bool = False) -> Iterator[tuple[str, np.ndarray]]:
        """(their name, float32 array) of each of a layer's parameters. always_bias: zeros where ours has no bias."""
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
        for theirs, ours in self.norms:
            if ours in layer:
                norm = layer[ours]["norm"]
                yield f"{theirs}{self.separator}{self.scale}", _float32(norm["scale"])
                if "bias" in norm:
                    yield f"{theirs}{self.separator}{self.shift}", _float32(norm["bias"])

    def read(self, arrays: NamedArrays, prefix: str, model: Model, *, cross: bool) -> dict[str, Any]:
        """The parameters of the layer whose arrays begin with `prefix`. cross: it attends over the source, too. Raises
        UserError for an array that is missing or has another shape.
        """
        gated = model.feed_forward == "gated"
        layer: dict[str, Any] = {}
        for theirs, ours in self.maps:
            block, name = ours[0].split("/")
            feed_forward = block == "feed_forward"
            if block == "cross_attention" and not cross or feed_forward and gated == name.startswith("Einsum"):
                continue
            biased = not gated if feed_forward else model.attention_bias
            for path, part in zip(ours, self._read_maps(arrays, f"{prefix}{theirs}", ours, model, biased), strict=True):
                layer.setdefault(block, {})[path.split("/")[1]] = part
        for theirs, ours in self.norms:
            if ours != "residual_cross" or cross:
                layer[ours] = {"norm": self.read_norm(arrays, f"{prefix}{theirs}", model)}
        return layer

    def _read_maps(
        self, arrays: NamedArrays, name: str, ours: tuple[str, ...], model: Model, biased: bool
    ) -> list[dict[str, np.ndarray]]:
        into, out = _shape(ours[0].split("/")[1], model)
        rows = math.prod(out)
        weight = arrays.take(f"{name}{self.separator}weight", len(ours) * rows, math.prod(into))
        maps = [{"kernel": part.T.reshape(*into, *out)} for part in np.split(weight, len(ours))]
        if biased:
            shifts = np.split(arrays.take(f"{name}{self.separator}bias", len(ours) * rows), len(ours))
            maps = [part | {"bias": shift.reshape(out)} for part, shift in zip(maps, shifts, strict=True)]
        return maps

    def read_norm(self, arrays: NamedArrays, name: str, model: Model) -> dict[str, np.ndarray]:
        """The parameters of a norm of theirs."""
        scale = {"scale": arrays.take(f"{name}{self.separator}{self.scale}", model.d_model)}
        if model.norm_type == "rmsnorm":
            return scale
        return scale | {"bias": arrays.take(f"{name}{self.separator}{self.shift}", model.d_model)}


def _shape(name: str, model: Model) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(input axes, output axes) of one of our kernels."""
    width, heads = (model.d_model,), (model.num_heads, model.d_model // model.num_heads)
    shapes = {"out": (heads, width)} | dict.fromkeys(("query", "key", "value"), (width, heads))
    shapes |= dict.fromkeys(("Einsum_0", "gate", "up"), (width, (model.d_ff,)))
    shapes |= dict.fromkeys(("Einsum_1", "down"), ((model.d_ff,), width))
    return shapes[name]


def _float32(x: Any) -> np.ndarray:
    return np.array(x, np.float32)  # a copy: quantization scales it in place


MARIAN = LayerNames(
    (
        *(
            (f"{theirs}.{part[0]}_proj" if part != "out" else f"{theirs}.out_proj", (f"{ours}/{part}",))
            for theirs, ours in (("self_attn", "self_attention"), ("encoder_attn", "cross_attention"))
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
CTRANSLATE2 = LayerNames(
    (
        ("self_attention/linear_0", ("self_attention/query", "self_attention/key", "self_attention/value")),
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
