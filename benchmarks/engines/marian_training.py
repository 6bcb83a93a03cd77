"""Hugging Face's MarianMTModel of the same size: post-norm, sinusoids, tied embeddings."""

from typing import Any

import torch
import transformers

from benchmarks.engines.child import main, time_training, torch_device, torch_threads
from benchmarks.engines.torch_training import batches_of, settings, trainer
from benchmarks.models import EOS, PAD


def marian(size: dict[str, Any], **more: Any) -> transformers.MarianMTModel:
    """Return a model with random weights; dropout where ours is."""
    sides = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in (
            ("layers", size["layers"]),
            ("ffn_dim", size["d_ff"]),
            ("attention_heads", size["heads"]),
        )
    }
    keys = dict(
        vocab_size=size["vocab"],
        d_model=size["d_model"],
        dropout=size["dropout"],
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=1024,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        use_cache=False,
    )
    return transformers.MarianMTModel(transformers.MarianConfig(**(keys | sides | more)))


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Time training steps."""
    torch_threads(task)
    model = marian(task["size"]).train().to(torch_device())

    def logits(source: torch.Tensor, shifted: torch.Tensor) -> torch.Tensor:
        padding = source != PAD
        mask = None if bool(padding.all()) else padding
        return model(input_ids=source, attention_mask=mask, decoder_input_ids=shifted).logits

    result = time_training(
        trainer(model, logits, task.get("precision", "float32")), batches_of(task), task["passes"]
    )
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return result | {"settings": settings(task), "versions": versions}


if __name__ == "__main__":
    main(measure)
