"""PyTorch's nn.Transformer: post-norm, tied embeddings, label smoothing, Adam, our dropout."""

import math
from typing import Any

import torch
from torch import nn

from benchmarks.engines.child import main, preloaded, time_training, torch_device, torch_threads
from benchmarks.models import PAD, load_batches, sinusoids


class Model(nn.Module):
    """Transformer with dropout on embeddings and sub-layer outputs only."""

    def __init__(self, size: dict[str, Any]):
        super().__init__()
        d = size["d_model"]
        self.embedding = nn.Embedding(size["vocab"], d, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        sizes = d, size["heads"], size["layers"], size["layers"], size["d_ff"], size["dropout"]
        self.body = nn.Transformer(*sizes, batch_first=True)
        self.body.encoder.norm = self.body.decoder.norm = None  # each layer ends with a norm
        for layer in (*self.body.encoder.layers, *self.body.decoder.layers):
            layer.dropout = nn.Identity()
            for module in layer.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0
        self.dropout = nn.Dropout(size["dropout"])
        self.register_buffer("positions", torch.from_numpy(sinusoids(1024, d)))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, L] -> [B, L, D]."""
        scaled = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def forward(self, source: torch.Tensor, shifted: torch.Tensor) -> torch.Tensor:
        """Return logits [B, T, V]. Sources have a mask only if they have padding."""
        padding = source == PAD
        padding = padding if bool(padding.any()) else None
        hidden = self.body(
            self.embed(source),
            self.embed(shifted),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(
                shifted.shape[1], device=shifted.device
            ),
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return hidden @ self.embedding.weight.T


def trainer(model: nn.Module, logits, precision: str = "float32"):
    """Return `step(batch)` for a model whose `logits(source, shifted target)` are [B, T, V]."""
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        source, target = batch
        shifted = nn.functional.pad(target, (1, 0), value=1)[:, :-1]
        with torch.autocast(
            source.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"
        ):
            loss = criterion(logits(source, shifted).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def batches_of(task: dict[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the task's batches as int64 tensors on the device."""
    arrays = load_batches(task["batches"])
    return [tuple(torch.from_numpy(x).long().to(torch_device()) for x in batch) for batch in arrays]


def settings(task: dict[str, Any]) -> list[str]:
    """Return the settings of a PyTorch engine, for the record."""
    how = "torch.compile" if task.get("compiled") else "eager"
    where = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{torch.get_num_threads()} threads"
    )
    return [f"{how}, {task.get('precision', 'float32')}, {where}", *preloaded()]


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Time training steps."""
    torch_threads(task)
    model = Model(task["size"]).train().to(torch_device())
    forward = torch.compile(model) if task.get("compiled") else model
    step = trainer(model, forward, task.get("precision", "float32"))
    result = time_training(step, batches_of(task), task["passes"])
    return result | {"settings": settings(task), "versions": {"torch": torch.__version__}}


if __name__ == "__main__":
    main(measure)
