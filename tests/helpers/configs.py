"""Small configs, corpora and models that the tests share."""

import dataclasses
from pathlib import Path

import jax
import numpy as np

from t2t_flax.config import Config, Data, Model, Optimizer
from t2t_flax.data.token_store import StoreWriter, TokenStore
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import init_state, make_model

MODEL = Model(
    num_encoder_layers=1,
    num_decoder_layers=1,
    d_model=16,
    d_ff=32,
    num_heads=4,
    dropout=0.1,
    pad_vocab_to_multiple=8,
)
DATA = Data(train="toy:train", max_length=24, pack_length=24, batch_tokens=160)
VOCAB = 37


def small_config(**groups) -> Config:
    """A config of a model with 16 dimensions.

    `model=dict(dropout=0.0)` changes keys of a group, of the core or of an extension.
    """
    base = Config(model=MODEL, data=DATA, optimizer=Optimizer(warmup_steps=10))
    return base.with_values(
        {f"{group}.{key}": x for group, keys in groups.items() for key, x in keys.items()}
    )


def devices_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1) -> jax.sharding.Mesh:
    """A mesh of the given shape over the first devices."""
    config = dataclasses.replace(Config().mesh, data=data, fsdp=fsdp, tensor=tensor)
    return mesh_lib.make_mesh(config, jax.devices()[: data * fsdp * tensor])


def model_and_state(config: Config, mesh=None, vocab: int = VOCAB):
    """(model, optimizer, state, shardings) of a config on a mesh (default: one device)."""
    mesh = mesh or devices_mesh()
    model, tx = make_model(config, vocab, vocab), make_optimizer(config, parametrization_of(config))
    state, shardings = init_state(config, model, tx, parametrization_of(config), mesh)
    return model, tx, state, shardings


def random_pairs(
    count: int, *, seed: int = 0, longest: int = 20, vocab: int = VOCAB
) -> list[tuple[list[int], list[int]]]:
    """Pairs of id lists that end with EOS."""
    rng = np.random.default_rng(seed)

    def sentence():
        return rng.integers(3, vocab, rng.integers(1, longest)).tolist() + [1]

    return [(sentence(), sentence()) for _ in range(count)]


def write_store(
    folder: Path, pairs: list[tuple[list[int], list[int]]], vocab: int = VOCAB
) -> TokenStore:
    """A token store with the given ids."""
    with StoreWriter(folder, vocab_sizes=(vocab, vocab)) as writer:
        sides = [
            (
                np.concatenate([np.array(p[n], np.int32) for p in pairs]),
                np.array([len(p[n]) for p in pairs], np.int32),
            )
            for n in (0, 1)
        ]
        writer.write(*sides)
        writer.meta.update(digest="test", pairs_read=len(pairs))
    return TokenStore.open(folder)


def rows_alone(pairs: list[tuple[list[int], list[int]]], length: int = 24) -> dict[str, np.ndarray]:
    """One pair per row: arrays [B, L] as the model takes them."""
    arrays = {}
    for n, side in enumerate(("source", "target")):
        ids = np.zeros((len(pairs), length), np.int32)
        for i, pair in enumerate(pairs):
            ids[i, : len(pair[n])] = pair[n]
        arrays[side] = ids
        arrays[f"{side}_segments"] = (ids > 0).astype(np.int32)
        arrays[f"{side}_positions"] = np.where(ids > 0, np.arange(length), 0).astype(np.int32)
    return arrays


TINY_FLAGS = [
    "--config=configs/toy.py",
    *(
        f"--config.{key}"
        for key in (
            "data.train=toy:train:300", "data.valid=toy:valid:20", "data.test=toy:test:10", "data.vocab_size=200",
            "model.d_model=16", "model.d_ff=32", "model.num_heads=2", "model.num_encoder_layers=1",
            "model.num_decoder_layers=1", "train.steps=2", "eval.bootstrap_samples=0",
            "eval.decode_every_steps=0", "decode.max_length_offset=5", "decode.beam_size=1", "mesh.cpu_devices=1",
        )
    ),
]  # fmt: skip
"""Of commands: two updates of a very small model on the built-in corpus."""

SMALL_KEYS = {
    "model.d_model": 32, "model.d_ff": 64, "model.num_encoder_layers": 1, "model.num_decoder_layers": 1,
    "data.train": "toy:train:500", "data.valid": "toy:valid:20", "data.test": "toy:test:20", "data.vocab_size": 400,
    "data.batch_tokens": 512, "mesh.cpu_devices": 1, "eval.every_steps": 10, "checkpoint.every_steps": 10,
    "log.every_steps": 5, "decode.max_length_offset": 5, "decode.max_length_ratio": 0.2,
}  # fmt: skip
"""Keys of a small run of `configs/toy.py`, by commands and in Python.

Its programs are compiled once for both.
"""
