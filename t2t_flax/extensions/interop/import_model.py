"""Reads a trained model of another program, or of `export`, recognized by its files."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from t2t_flax.config import Model
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop import ctranslate2_import, marian_import
from t2t_flax.extensions.interop.imported import ImportedModel, json_file
from t2t_flax.training.model_folder import MODEL_FILE, open_model_folder
from t2t_flax.training.safetensors_file import flatten, read_safetensors, unflatten

EXPECTED = (
    "model.safetensors of `export --format=safetensors`, a Hugging Face Marian model (config.json with model_type marian, and "
    "model.safetensors or pytorch_model.bin), or a CTranslate2 model (model.bin or weights.npz, and vocabularies)"
)


def read_model(path: str | Path, *, num_heads: int = 0, languages: tuple[str, str] = ("", "")) -> ImportedModel:
    """The model in a folder, or in the folder of a file.

    num_heads, languages: where the files do not say them, else 0 and "". Raises UserError for an unknown kind of folder, and
    for files that are missing, damaged, or of a model that this project does not have.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"--from={path}: there is no such file or folder.")
    folder = path if path.is_dir() else path.parent
    imported = _reader(path, folder)(folder, num_heads=num_heads, languages=languages)
    return _with_padded_tables(imported) if imported.config.model.pad_vocab_to_multiple == 1 else imported


def _reader(path: Path, folder: Path) -> Callable[..., ImportedModel]:
    settings = json_file(folder / "config.json") if (folder / "config.json").is_file() else {}
    if {"model", "data"} <= settings.keys():
        raise UserError(f"--from={path} is a run of t2t_flax already: give it as --workdir to any command.")
    kind = settings.get("model_type")
    if kind == "marian":
        return marian_import.read
    if kind is not None:
        raise UserError(f"--from={path}: config.json has model_type = {kind!r}; expected marian.")
    if ctranslate2_import.find(folder):
        return ctranslate2_import.read
    if (folder / MODEL_FILE).is_file():
        return _read_own
    names = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "nothing"
    raise UserError(f"--from={path} is not a model that can be read: it holds {shown}; expected {EXPECTED}.")


def _read_own(folder: Path, **_: object) -> ImportedModel:
    model = open_model_folder(folder)
    if model is None:
        raise UserError(f"there is no {folder / MODEL_FILE}.")
    tokenizers = TokenizerPair.load(folder / "tokenizer")
    if tokenizers.digest != model.tokenizer:
        raise UserError(f"{folder / 'tokenizer'} is not the tokenizer with which {folder / MODEL_FILE} was trained.")
    params, _ = read_safetensors(folder / MODEL_FILE)
    return ImportedModel("safetensors of t2t_flax", model.config, params, tokenizers, step=max(model.steps))


def _with_padded_tables(imported: ImportedModel) -> ImportedModel:
    """The tables with as many rows as the default of model.pad_vocab_to_multiple, which meshes and accelerators like better."""
    multiple = Model.pad_vocab_to_multiple
    out = {}
    for path, x in flatten(imported.params).items():
        rows = -len(x) % multiple if path == "output_bias" or path.endswith("_embedding/table") else 0
        out[path] = np.pad(x, [(0, rows), *[(0, 0)] * (x.ndim - 1)]) if rows else x
    model = dataclasses.replace(imported.config.model, pad_vocab_to_multiple=multiple)
    return dataclasses.replace(
        imported, params=unflatten(out), config=dataclasses.replace(imported.config, model=model)
    )
