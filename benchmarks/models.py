"""The two models of the speed benchmarks and their sentences.

Imports only NumPy: peers read these in environments without JAX.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

PAD, EOS, FIRST_WORD = 0, 1, 3
SIZES: dict[str, dict[str, Any]] = {
    "tiny": dict(
        layers=4,
        d_model=128,
        d_ff=256,
        heads=4,
        vocab=10_000,
        dropout=0.3,
        tokens=4096,
        mean_length=14.5,
        row=64,
    ),
    "base": dict(
        layers=6,
        d_model=512,
        d_ff=2048,
        heads=8,
        vocab=32_000,
        dropout=0.1,
        tokens=2060,
        mean_length=27.0,
        row=128,
    ),
    # For tests and first tries: seconds, not minutes.
    "mini": dict(
        layers=1,
        d_model=32,
        d_ff=64,
        heads=2,
        vocab=500,
        dropout=0.1,
        tokens=256,
        mean_length=8.0,
        row=32,
    ),
}
"""Sizes of models. tiny: Multi30k's sentence lengths and vocabulary. base: the paper's, WMT's.

`tokens`: real target tokens of a training batch. `row`: length of packed rows; no sentence is
longer than 4 less.
"""


def draw_pairs(
    size: dict[str, Any], count: int, seed: int = 0
) -> list[tuple[list[int], list[int]]]:
    """Return `count` pairs of id lists that end with EOS.

    Source lengths are gamma-distributed with shape 6, as in real corpora; target lengths differ by
    about 15 %; words are uniform.
    """
    rng = np.random.default_rng(seed)
    longest = size["row"] - 4
    pairs = []
    for _ in range(count):
        source = int(np.clip(rng.gamma(6, size["mean_length"] / 6), 3, longest))
        target = int(np.clip(source * rng.normal(1.0, 0.15), 3, longest))
        pairs.append(
            tuple(
                [*rng.integers(FIRST_WORD, size["vocab"], n - 1).tolist(), EOS]
                for n in (source, target)
            )
        )
    return pairs


def training_batches(
    size: dict[str, Any], count: int, seed: int = 0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return `count` batches (source, target), int32 [B, S] and [B, T], padded with zeros.

    An epoch of at least 40 batches is sorted by length and cut into batches of at most `tokens`
    real target tokens; the returned batches are spread evenly over it, from short sentences to long
    ones.
    """
    total = 40 * size["tokens"]
    pairs = draw_pairs(size, int(total / size["mean_length"]) + 1, seed)
    pairs.sort(key=lambda pair: (len(pair[1]), len(pair[0])))
    epoch, batch, used = [], [], 0
    for pair in pairs:
        if used + len(pair[1]) > size["tokens"]:
            epoch.append(batch)
            batch, used = [], 0
        batch.append(pair)
        used += len(pair[1])
    chosen = [epoch[int((i + 0.5) * len(epoch) / count)] for i in range(count)]
    return [tuple(padded([pair[side] for pair in batch]) for side in (0, 1)) for batch in chosen]


def padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """int32 [B, L], zero-padded to the longest row."""
    out = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def save_batches(path: str | os.PathLike, batches: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Write batches to an .npz file."""
    np.savez(
        path,
        **{
            f"{side}{i}": x
            for i, batch in enumerate(batches)
            for side, x in zip("st", batch, strict=True)
        },
    )


def load_batches(path: str | os.PathLike) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the batches that `save_batches` wrote."""
    with np.load(path) as arrays:
        return [(arrays[f"s{i}"], arrays[f"t{i}"]) for i in range(len(arrays.files) // 2)]


def sinusoids(length: int, d_model: int) -> np.ndarray:
    """float32 [length, d_model] (3.5): sine and cosine interleaved."""
    angle = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(length, d_model).astype(np.float32)


def read_json(path: str | os.PathLike) -> Any:
    """Return the content of a JSON file."""
    return json.loads(Path(path).read_text())
