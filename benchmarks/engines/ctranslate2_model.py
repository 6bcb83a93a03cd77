"""Writes a model of `benchmarks.engines.weights` in CTranslate2's format, float32 or int8."""

from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec

from benchmarks.models import read_json, sinusoids

POSITIONS = 1024


def words(vocab: int) -> list[str]:
    """Return the token of each id."""
    return ["<blank>", "</s>", "<unk>", *(f"w{i}" for i in range(3, vocab))]


def export(folder: str | Path, out: str | Path, quantization: str | None = None) -> None:
    """Read FOLDER/weights.npz and model.json; write the model to the folder `out`."""
    stored = read_json(Path(folder, "model.json"))
    keys, vocab = stored["keys"], stored["vocab"]
    with np.load(Path(folder, "weights.npz")) as archive:
        arrays = {name: archive[name] for name in archive.files}
    layers = keys["num_encoder_layers"], keys["num_decoder_layers"]
    spec = TransformerSpec.from_config(
        layers, keys["num_heads"], pre_norm=False, no_final_norm=True
    )
    spec.config.layer_norm_epsilon = keys["norm_eps"]
    spec.config.decoder_start_token = "</s>"  # replaced by zeros, as in tensor2tensor
    spec.decoder.start_from_zero_embedding = True
    table = arrays["shared_embedding/table"][:vocab]
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = (
        spec.decoder.projection.weight
    ) = table
    for stack in (spec.encoder, spec.decoder):
        stack.position_encodings.encodings = sinusoids(POSITIONS, keys["d_model"])
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        for i, layer in enumerate(stack.layer):
            _layer(
                layer,
                {k.split("/", 1)[1]: v for k, v in arrays.items() if k.startswith(f"{side}_{i}/")},
            )
    spec.register_source_vocabulary(words(vocab))
    spec.register_target_vocabulary(words(vocab))
    spec.validate()
    spec.optimize(quantization)
    Path(out).mkdir(parents=True, exist_ok=True)
    spec.save(str(out))


def _layer(layer: Any, arrays: dict[str, np.ndarray]) -> None:
    """Copy a layer's weights.

    Linear weights are [out, in] there and [in..., out...] here; the projections of one input are
    one matrix.
    """

    def projections(attention: str, *names: str) -> np.ndarray:
        kernels = [arrays[f"{attention}/{name}/kernel"] for name in names]
        return np.concatenate([kernel.reshape(len(kernel), -1).T for kernel in kernels])

    def out(attention: str) -> np.ndarray:
        kernel = arrays[f"{attention}/out/kernel"]
        return np.ascontiguousarray(kernel.reshape(-1, kernel.shape[-1]).T)

    def norm(spec: Any, name: str) -> None:
        spec.gamma, spec.beta = arrays[f"{name}/norm/scale"], arrays[f"{name}/norm/bias"]

    layer.self_attention.linear[0].weight = projections("self_attention", "query", "key", "value")
    layer.self_attention.linear[1].weight = out("self_attention")
    norm(layer.self_attention.layer_norm, "residual_attention")
    if hasattr(layer, "attention"):
        layer.attention.linear[0].weight = projections("cross_attention", "query")
        layer.attention.linear[1].weight = projections("cross_attention", "key", "value")
        layer.attention.linear[2].weight = out("cross_attention")
        norm(layer.attention.layer_norm, "residual_cross")
    for linear, name in ((layer.ffn.linear_0, "Einsum_0"), (layer.ffn.linear_1, "Einsum_1")):
        linear.weight = np.ascontiguousarray(arrays[f"feed_forward/{name}/kernel"].T)
        linear.bias = arrays[f"feed_forward/{name}/bias"]
    norm(layer.ffn.layer_norm, "residual_ffn")


def supported() -> set[str]:
    """Return the compute types of this CPU."""
    return ctranslate2.get_supported_compute_types("cpu")
