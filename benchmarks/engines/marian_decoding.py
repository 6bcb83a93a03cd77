"""Hugging Face's MarianMTModel.generate on the same weights.

The row after the vocabulary is the decoder's start, zeros as in our model; its logit and the one of
padding are never chosen.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.engines.child import main, torch_device, torch_threads
from benchmarks.engines.marian_training import marian
from benchmarks.engines.torch_training import settings
from benchmarks.models import EOS, PAD, padded, read_json, sinusoids


def load(folder: str | Path) -> transformers.MarianMTModel:
    """Return the model with the weights of `benchmarks.engines.weights`."""
    stored = read_json(Path(folder, "model.json"))
    keys, vocab = stored["keys"], stored["vocab"]
    with np.load(Path(folder, "weights.npz")) as archive:
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}
    size = dict(
        layers=keys["num_encoder_layers"],
        d_model=keys["d_model"],
        d_ff=keys["d_ff"],
        heads=keys["num_heads"],
        vocab=vocab + 1,
        dropout=0.0,
    )
    more = dict(
        decoder_layers=keys["num_decoder_layers"], decoder_start_token_id=vocab, use_cache=True
    )
    model = marian(size, **more).eval()
    with torch.no_grad():
        for side in ("encoder", "decoder"):
            stack = getattr(model.model, side)
            stack.embed_positions.weight.copy_(torch.from_numpy(sinusoids(1024, keys["d_model"])))
            for i, layer in enumerate(stack.layers):
                prefix = f"{side}_{i}/"
                _layer(
                    layer, {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
                )
        table = model.model.shared.weight
        table.zero_()
        table[:vocab].copy_(arrays["shared_embedding/table"][:vocab])
        table[PAD].zero_()
        model.final_logits_bias[0, PAD] = model.final_logits_bias[0, vocab] = -1e9
    return model


def _layer(layer: Any, arrays: dict[str, torch.Tensor]) -> None:
    def attention(module: Any, name: str) -> None:
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            kernel = arrays[
                f"{name}/{dict(q='query', k='key', v='value', o='out')[part[0]]}/kernel"
            ]
            linear = getattr(module, part)
            linear.weight.copy_(kernel.reshape(linear.in_features, linear.out_features).T)
            linear.bias.zero_()

    def norm(module: Any, name: str) -> None:
        module.weight.copy_(arrays[f"{name}/norm/scale"])
        module.bias.copy_(arrays[f"{name}/norm/bias"])

    attention(layer.self_attn, "self_attention")
    norm(layer.self_attn_layer_norm, "residual_attention")
    if hasattr(layer, "encoder_attn"):
        attention(layer.encoder_attn, "cross_attention")
        norm(layer.encoder_attn_layer_norm, "residual_cross")
    for linear, name in ((layer.fc1, "Einsum_0"), (layer.fc2, "Einsum_1")):
        linear.weight.copy_(arrays[f"feed_forward/{name}/kernel"].T)
        linear.bias.copy_(arrays[f"feed_forward/{name}/bias"])
    norm(layer.final_layer_norm, "residual_ffn")


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Time the translation of all groups."""
    torch_threads(task)
    model = load(task["folder"]).to(torch_device())
    if task.get("precision") == "bfloat16":
        model = model.to(torch.bfloat16)

    @torch.inference_mode()
    def translate(groups: list) -> tuple[float, list]:
        began, out = time.perf_counter(), []
        for group in groups:
            for start in range(0, len(group["sources"]), task["batch_size"]):
                sources = group["sources"][start : start + task["batch_size"]]
                ids = torch.from_numpy(padded(sources)).long().to(torch_device())
                out += model.generate(
                    input_ids=ids,
                    attention_mask=ids != PAD,
                    num_beams=task["beam_size"],
                    do_sample=False,
                    length_penalty=task["alpha"],
                    early_stopping=True,
                    max_new_tokens=group["cap"],
                    max_length=None,
                ).tolist()
        return time.perf_counter() - began, out

    first, _ = translate(task["groups"][:1])
    timed = [translate(task["groups"]) for _ in range(task["passes"])]
    return {
        "first_pass_seconds": first,
        "seconds": [seconds for seconds, _ in timed],
        "outputs": [[i for i in row[1:] if i not in (PAD, EOS)] for row in timed[-1][1]],
        "settings": settings(task),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


if __name__ == "__main__":
    main(measure)
