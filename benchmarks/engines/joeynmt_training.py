"""Joey NMT's Transformer of the same size with its own loss (KL divergence of smoothed targets)."""

import importlib.metadata
from typing import Any

import torch
from joeynmt.model import Model, build_model
from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward
from joeynmt.vocabulary import Vocabulary

from benchmarks.engines.child import main, time_training, torch_threads
from benchmarks.engines.torch_training import batches_of, settings
from benchmarks.models import EOS, PAD


def vocabulary_of(count: int) -> Vocabulary:
    """Return our ids: padding 0, end 1. Joey NMT's constructor would order its tokens otherwise."""
    names = ["<pad>", "</s>", "<unk>", "<s>", *(f"w{i}" for i in range(4, count))]
    vocabulary = Vocabulary.__new__(Vocabulary)
    vocabulary.specials, vocabulary.lang_tags = names[:4], []
    vocabulary._itos, vocabulary._stoi = names, {name: i for i, name in enumerate(names)}
    vocabulary.pad_index, vocabulary.eos_index = PAD, EOS
    vocabulary.unk_index, vocabulary.bos_index = 2, 3
    vocabulary.sep_index = None
    return vocabulary


def build(size: dict[str, Any]) -> Model:
    """Return a model with random weights; dropout where ours is."""
    vocabulary = vocabulary_of(size["vocab"])
    stack = dict(
        type="transformer", num_layers=size["layers"], num_heads=size["heads"],
        hidden_size=size["d_model"],
        ff_size=size["d_ff"], dropout=size["dropout"], layer_norm="post",
        embeddings=dict(embedding_dim=size["d_model"], scale=True, dropout=size["dropout"]),
    )  # fmt: skip
    config = dict(encoder=stack, decoder=stack, tied_embeddings=True, tied_softmax=True)
    model = build_model(config | {"initializer": "xavier_uniform"}, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", 0.1)
    for module in model.modules():
        if isinstance(module, MultiHeadedAttention):
            module.dropout = torch.nn.Identity()
        elif isinstance(module, PositionwiseFeedForward):
            module.pwff_layer[2] = torch.nn.Identity()
    return model


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Time training steps."""
    torch_threads(task)
    model = build(task["size"]).train()
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        source, target = batch
        shifted = torch.nn.functional.pad(target, (1, 0), value=EOS)[:, :-1]
        tokens = (target != PAD).sum()
        loss, *_ = model(
            return_type="loss",
            src=source,
            src_length=(source != PAD).sum(1),
            src_mask=(source != PAD).unsqueeze(1),
            trg_input=shifted,
            trg=target,
            trg_mask=(target != PAD).unsqueeze(1),
        )
        optimizer.zero_grad()
        (loss / tokens).backward()
        optimizer.step()
        return float(loss.detach() / tokens)

    result = time_training(step, batches_of(task), task["passes"])
    versions = {"torch": torch.__version__, "joeynmt": importlib.metadata.version("joeynmt")}
    return result | {"settings": settings(task), "versions": versions}


if __name__ == "__main__":
    main(measure)
