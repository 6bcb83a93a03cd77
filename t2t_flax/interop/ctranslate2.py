"""Imports a CTranslate2 encoder-decoder Transformer: pre-norm, fused projections, separate vocabularies.

The folder contains `weights.npz` with arrays under CTranslate2's names, and `source_vocabulary.txt` and
`target_vocabulary.txt` with one token per line. CTranslate2's linear weights are [out, in], ours [in, out]; ids are
renumbered so that 0, 1 and 2 are padding, EOS and unknown.
"""

import itertools
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from t2t_flax.config import Model
from t2t_flax.errors import UserError

BLANK, START, END, UNKNOWN = "<blank>", "<s>", "</s>", "<unk>"
_STACKS = {"source": "encoder", "target": "decoder"}


def read_ctranslate2(folder: str | Path, num_heads: int) -> tuple[Model, dict[str, Any], list[str], list[str]]:
    """(model config, parameters, source vocabulary, target vocabulary); vocabulary[i] is the token of id i.

    Parameters are float32 NumPy arrays. The files do not contain the number of heads, the activation (assumed to be
    ReLU), or whether sources end with `</s>` (those of OpenNMT-tf do not). Raises UserError for missing or unexpected
    files and arrays, and for arrays of the wrong shape.
    """
    folder = Path(folder)
    arrays = _Arrays(folder / "weights.npz")
    d_model = arrays.take("encoder/embeddings/weight", 0, 0).shape[1]
    tables = {side: arrays.take(f"{stack}/embeddings/weight", 0, d_model) for side, stack in _STACKS.items()}
    if num_heads < 1 or d_model % num_heads:
        raise UserError(f"num_heads = {num_heads} does not divide the model's width, {d_model} ({arrays.path}).")
    orders, tokens = {}, {}
    for side in _STACKS:
        orders[side], tokens[side] = _order(folder / f"{side}_vocabulary.txt", len(tables[side]))
    width = len(tokens["target"])
    d_ff = arrays.take("encoder/layer_0/ffn/linear_0/weight", 0, d_model).shape[0]
    layers = {stack: arrays.count(f"{stack}/layer_") for stack in _STACKS.values()}
    # The embedding of <s> is the decoder's start vector; <s> also remains in the vocabulary.
    start = tables["target"][orders["target"][tokens["target"].index(START)]]
    params = {
        "source_embedding": {"table": tables["source"][orders["source"]]},
        "target_embedding": {"table": tables["target"][orders["target"]]},
        "output_embedding": {"table": arrays.take("decoder/projection/weight", width, d_model)[orders["target"]]},
        "output_bias": arrays.take("decoder/projection/bias", width)[orders["target"]],
        "decoder_start_token": {"bos": start},
    }
    for stack, count in layers.items():
        params[f"{stack}_norm"] = arrays.norm(f"{stack}/layer_norm", d_model)
        for n in range(count):
            params[f"{stack}_{n}"] = _layer(arrays, f"{stack}/layer_{n}", d_model, d_ff, num_heads)
    arrays.refuse_unused()
    config = Model(
        num_encoder_layers=layers["encoder"],
        num_decoder_layers=layers["decoder"],
        d_model=d_model,
        d_ff=d_ff,
        num_heads=num_heads,
        attention_bias=True,
        norm_placement="pre",
        final_norm="both",
        norm_eps=1e-5,
        position="sinusoid_halves",
        position_offset=1,
        tie_embeddings="none",
        embed_scale="sqrt_d",
        output_bias=True,
        decoder_start_token="bos",
        pad_vocab_to_multiple=1,
    )
    return config, params, tokens["source"], tokens["target"]


class _Arrays:
    """The arrays of a file by name; tracks which were used, so that unexpected ones can be reported."""

    def __init__(self, path: Path):
        if not path.is_file():
            raise UserError(f"there is no {path}: expected CTranslate2 weights as a NumPy archive.")
        try:
            with np.load(path, allow_pickle=False) as archive:
                self._arrays = {name: archive[name] for name in archive.files}
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} is not a readable NumPy archive (.npz): {error}") from error
        self.path, self._used = path, set()

    def count(self, prefix: str) -> int:
        """The number of consecutive PREFIX0, PREFIX1, ...; at least 1, so that a missing layer 0 is reported by `take`."""
        has = lambda n: any(name.startswith(f"{prefix}{n}/") for name in self._arrays)  # noqa: E731
        return next(n for n in itertools.count(1) if not has(n))

    def take(self, name: str, *shape: int) -> np.ndarray:
        """The float32 array with this name and shape; a 0 in the shape accepts any size above 0."""
        if name not in self._arrays:
            raise UserError(
                f"{self.path} has no array {name!r}; expected a pre-norm encoder-decoder Transformer with biases, a "
                "final norm in both stacks and a separate output projection."
            )
        self._used.add(name)
        array = self._arrays[name]
        fits = array.ndim == len(shape) and all(
            size == expected if expected else size > 0 for size, expected in zip(array.shape, shape, strict=True)
        )
        if not fits:
            expected_shape = ", ".join(str(size) if size else "any" for size in shape)
            raise UserError(f"{self.path}: {name!r} has shape {array.shape}, expected ({expected_shape}).")
        if array.dtype.kind != "f":
            raise UserError(f"{self.path}: {name!r} is {array.dtype}; expected floating-point, not quantized, weights.")
        return array.astype(np.float32)

    def norm(self, name: str, d_model: int) -> dict[str, np.ndarray]:
        return {"scale": self.take(f"{name}/gamma", d_model), "bias": self.take(f"{name}/beta", d_model)}

    def linear(self, name: str, into: tuple[int, ...], out: tuple[int, ...], parts: int = 1) -> list[dict[str, Any]]:
        """`parts` linear maps fused along their outputs: kernels [*into, *out] and biases [*out]."""
        rows = math.prod(out)
        kernel = self.take(f"{name}/weight", parts * rows, math.prod(into))
        bias = self.take(f"{name}/bias", parts * rows)
        return [
            {"kernel": part.T.reshape(*into, *out), "bias": shift.reshape(out)}
            for part, shift in zip(np.split(kernel, parts), np.split(bias, parts), strict=True)
        ]

    def refuse_unused(self) -> None:
        unused = sorted(set(self._arrays) - self._used)
        if unused:
            shown = ", ".join(unused[:5]) + (", ..." if len(unused) > 5 else "")
            raise UserError(f"{self.path} has {len(unused)} unexpected arrays: {shown}.")


def _layer(arrays: _Arrays, name: str, d_model: int, d_ff: int, num_heads: int) -> dict[str, Any]:
    """Parameters of one layer; CTranslate2 names cross-attention `attention`."""
    width, heads = (d_model,), (num_heads, d_model // num_heads)
    query, key, value = arrays.linear(f"{name}/self_attention/linear_0", width, heads, parts=3)
    (out,) = arrays.linear(f"{name}/self_attention/linear_1", heads, width)
    (up,) = arrays.linear(f"{name}/ffn/linear_0", width, (d_ff,))
    (down,) = arrays.linear(f"{name}/ffn/linear_1", (d_ff,), width)
    layer = {
        "self_attention": {"query": query, "key": key, "value": value, "out": out},
        "residual_attention": {"norm": arrays.norm(f"{name}/self_attention/layer_norm", d_model)},
        "feed_forward": {"Einsum_0": up, "Einsum_1": down},
        "residual_ffn": {"norm": arrays.norm(f"{name}/ffn/layer_norm", d_model)},
    }
    if name.startswith("decoder"):
        (query,) = arrays.linear(f"{name}/attention/linear_0", width, heads)
        key, value = arrays.linear(f"{name}/attention/linear_1", width, heads, parts=2)
        (out,) = arrays.linear(f"{name}/attention/linear_2", heads, width)
        layer["cross_attention"] = {"query": query, "key": key, "value": value, "out": out}
        layer["residual_cross"] = {"norm": arrays.norm(f"{name}/attention/layer_norm", d_model)}
    return layer


def _order(path: Path, rows: int) -> tuple[np.ndarray, list[str]]:
    """(CTranslate2's embedding row of each of our ids, token of each of our ids)."""
    if not path.is_file():
        raise UserError(f"there is no {path}: expected one token per line, in the order of the embedding rows.")
    tokens = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    if UNKNOWN not in tokens:
        tokens.append(UNKNOWN)  # CTranslate2 appends its row after the last token
    if len(tokens) != rows:
        raise UserError(f"{path} has {len(tokens)} tokens including {UNKNOWN}, but the embedding has {rows} rows.")
    if len(set(tokens)) != rows:
        duplicate = next(token for token in tokens if tokens.count(token) > 1)
        raise UserError(f"{path} has the token {duplicate!r} more than once.")
    missing = [token for token in (BLANK, END, START) if token not in tokens]
    if missing:
        raise UserError(f"{path} has no {missing[0]}; expected {BLANK}, {START} and {END} among its tokens.")
    special = [tokens.index(token) for token in (BLANK, END, UNKNOWN)]  # 0, 1 and 2 here
    order = special + [row for row in range(rows) if row not in special]
    return np.array(order), [tokens[row] for row in order]
