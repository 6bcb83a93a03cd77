"""A Transformer of PyTorch's modules."""

import math

import torch


class Seq2Seq(torch.nn.Module):
    """PyTorch's stacks with the paper's input.

    A shared table times sqrt(d), sinusoids, and shifted targets.
    """

    def __init__(self, c, rows: int, eps: float):
        super().__init__()
        nn, shape = torch.nn, (c.d_model, c.num_heads, c.d_ff)
        keys = dict(
            dropout=0.0, layer_norm_eps=eps, batch_first=True, norm_first=c.norm_placement == "pre"
        )
        last = lambda: nn.LayerNorm(c.d_model, eps=eps) if c.norm_placement == "pre" else None  # noqa: E731
        layers = c.num_encoder_layers
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*shape, **keys), layers, last(), enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*shape, **keys), layers, last()
        )
        self.table = nn.Parameter(torch.zeros(rows, c.d_model))

    def bottom(self, ids):
        """[B, L] -> (scaled rows [B, L, D], position vectors [L, D])."""
        d_model = self.table.shape[1]
        position, i = (
            torch.arange(ids.shape[1]).double()[:, None],
            torch.arange(0, d_model, 2).double(),
        )
        angle = position / 10000 ** (i / d_model)
        sinusoids = torch.stack([angle.sin(), angle.cos()], -1).reshape(-1, d_model).float()
        return torch.nn.functional.embedding(ids, self.table) * math.sqrt(d_model), sinusoids

    def forward(self, source, target):
        """(encoder output, decoder output); id 0 is padding."""
        rows, positions = self.bottom(source)
        memory = self.encoder(rows + positions, src_key_padding_mask=source == 0)
        rows, positions = self.bottom(target)
        shifted = torch.cat([torch.zeros_like(rows[:, :1]), rows[:, :-1]], 1)
        length = target.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        paddings = dict(tgt_key_padding_mask=target == 0, memory_key_padding_mask=source == 0)
        return memory, self.decoder(shifted + positions, memory, tgt_mask=future, **paddings)
