"""Reader of trained models of another program, or of `export`.

It recognizes them by their files.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from etils import epath

from t2t_flax.config.overrides import from_elsewhere, warn_of_lost
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop import ctranslate2_import, m2m100_import, marian_import
from t2t_flax.extensions.interop.imported import ImportedModel
from t2t_flax.extensions.interop.json_settings import read_json
from t2t_flax.extensions.interop.model_folder import MODEL_FILE, open_model
from t2t_flax.extensions.interop.safetensors_file import read_safetensors

EXPECTED = (
    "model.safetensors of `export --format=safetensors`, a Hugging Face model (config.json with"
    " model_type marian or m2m_100, and model.safetensors or pytorch_model.bin, or the index of"
    " several), or a CTranslate2 model"
    " (model.bin or weights.npz, and vocabularies)"
)


def read_model(
    path: str | Path,
    *,
    num_heads: int = 0,
    languages: tuple[str, str] = ("", ""),
    new_languages: Mapping[str, str] = MappingProxyType({}),
) -> ImportedModel:
    """Read the model in a folder, or the one whose file of weights is named.

    Raises UserError for an unknown kind of folder, and for files that are missing, damaged, or from
    a model that this project does not have.

    Args:
        num_heads: number of heads if the files do not say it, else 0.
        languages: source and target code if the files do not say them, else "".
        new_languages: as in `m2m100_import.read`; other models take none.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"--from={path}: there is no such file or folder.")
    reader, weights = _reader(path)
    more: dict[str, Any] = {"new_languages": new_languages} if new_languages else {}
    if more and reader is not m2m100_import.read:
        raise UserError(f"--new-language is for models of M2M-100 and NLLB, not {path}.")
    return reader(weights, num_heads=num_heads, languages=languages, **more)


def _reader(path: Path) -> tuple[Callable[..., ImportedModel], Path]:
    """Return the function that reads a folder or file, and its file of weights."""
    folder = path if path.is_dir() else path.parent
    settings = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    if {"model", "data"} <= settings.keys():
        raise UserError(
            f"--from={path} is a run of t2t_flax already: give it as --workdir to any command."
        )
    kind = settings.get("model_type")
    kinds: Sequence[tuple[Callable[..., ImportedModel], Sequence[str]]] = _KINDS
    if kind is not None and kind not in _HUGGING_FACE:
        raise UserError(
            f"--from={path}: config.json has model_type = {str(kind)[:100]!r}; expected"
            f" {' or '.join(_HUGGING_FACE)}."
        )
    if kind is not None:
        kinds = ((_HUGGING_FACE[kind], marian_import.WEIGHTS),)
    known = [
        (reader, folder / name)
        for reader, names in kinds
        for name in names
        if (folder / name).is_file()
    ]
    if chosen := [(reader, file) for reader, file in known if path in (folder, file)]:
        return chosen[0]
    if kind is not None and path == folder:
        # Its error says what is wrong.
        return _HUGGING_FACE[kind], folder / marian_import.WEIGHTS[0]
    names = sorted(entry.name for entry in folder.iterdir())
    shown = (
        ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        or "nothing"
    )
    if path != folder and known:
        raise UserError(
            f"--from={path} is not the file of a model's weights: name"
            f" {' or '.join(str(f) for _, f in known)}."
        )
    raise UserError(
        f"--from={path} is not a model that can be read: it holds {shown}; expected {EXPECTED}."
    )


def _read_own(weights: Path, **_: object) -> ImportedModel:
    folder = weights.parent
    model = open_model(epath.Path(folder))
    if model is None:
        raise UserError(
            f"{weights} is beside a config.json, which no `export --format=safetensors` writes."
        )
    tokenizers = TokenizerPair.load(folder / "tokenizer")
    if tokenizers.digest != model.tokenizer:
        raise UserError(
            f"{folder / 'tokenizer'} is not the tokenizer with which {weights} was trained."
        )
    params, _ = read_safetensors(weights)
    config, lost = from_elsewhere(model.config)
    warn_of_lost(lost, str(weights))
    return ImportedModel(
        "safetensors of t2t_flax", config, params, tokenizers, step=max(model.steps)
    )


_HUGGING_FACE = {"marian": marian_import.read, "m2m_100": m2m100_import.read}
"""Readers by the model_type of config.json."""
_KINDS = ((ctranslate2_import.read, ctranslate2_import.WEIGHTS), (_read_own, (MODEL_FILE,)))
"""(reader, names of its weights), in order of preference.

config.json identifies Hugging Face's models.
"""
