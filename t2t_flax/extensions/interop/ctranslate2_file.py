"""CTranslate2's files: the arrays of `model.bin` (version 6), and token lists."""

import math
import struct
import zipfile
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from t2t_flax.errors import UserError, first_line
from t2t_flax.json_file import parse_json

VERSION = 6
_DTYPES = (np.float32, np.int8, np.int16, np.int32, np.float16, ml_dtypes.bfloat16)
"""Data types by their numbers in the file."""


_MOST_UNPACKED = 200
"""Maximum unpacked size relative to the archive.

Trained floats compress to more than half.
"""


class ModelFile(NamedTuple):
    """Contents of a model file.

    Args:
        spec: name of the model's class in CTranslate2; "" in a NumPy archive.
        arrays: arrays by name; quantized ones as float32.
    """

    path: Path
    spec: str
    arrays: dict[str, np.ndarray]


class _Reader:
    """Reader of numbers and strings from the start of `data`.

    Raises UserError if it ends too early.
    """

    def __init__(self, path: Path, data: bytes):
        self._path, self._data, self._at = path, data, 0

    def number(self, kind: str) -> int:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(kind)))[0]

    def string(self) -> str:
        try:
            return self.take(self.number("H")).rstrip(b"\0").decode("utf-8")
        except UnicodeDecodeError:
            raise self.error("names an array in bytes that are not UTF-8") from None

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise self.error(
                f"ends after {len(self._data):,} bytes, before the end of its arrays: it is"
                " truncated or"
            )
        self._at += count
        return self._data[self._at - count : self._at]

    def error(self, what: str) -> UserError:
        return UserError(
            f"{self._path} {what} not a model.bin of CTranslate2. Copy the model again."
        )

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)


def read_model_bin(path: Path) -> ModelFile:
    """Read the arrays of a model.bin.

    Raises UserError for a damaged file or another version.
    """
    reader = _Reader(path, path.read_bytes())
    version = reader.number("I")
    if not 1 <= version <= 100:
        raise reader.error(f"begins with version {version}: it is")
    if version != VERSION:
        raise UserError(
            f"{path} has binary version {version}; expected {VERSION}, which ctranslate2 4 converts"
            " models to."
        )
    spec, _ = reader.string(), reader.number("I")  # the class and its revision
    arrays = {}
    for _ in range(reader.number("I")):
        name = reader.string()
        arrays[name] = _array(reader, name)
    arrays = _dequantized(reader, arrays)
    for _ in range(reader.number("I")):
        alias, name = reader.string(), reader.string()
        if name not in arrays:
            raise reader.error(f"says that {alias} is {name}, which it lacks: it is")
        arrays[alias] = arrays[name]
    if not reader.at_end:
        raise reader.error("goes on after its last array: it is")
    return ModelFile(path, spec, arrays)


def _array(reader: _Reader, name: str) -> np.ndarray:
    shape = [reader.number("I") for _ in range(reader.number("B"))]
    kind, count = reader.number("B"), reader.number("I")
    dtype = _DTYPES[kind] if kind < len(_DTYPES) else None
    if dtype is None or count != math.prod(shape) * np.dtype(dtype).itemsize:
        raise reader.error(
            f"says that {name!r} has {count} bytes of type {kind} for shape {tuple(shape)}: it is"
        )
    try:
        return np.frombuffer(reader.take(count), dtype).reshape(shape)
    except ValueError:  # more dimensions than NumPy has
        raise reader.error(f"gives {name!r} {len(shape)} dimensions: it is") from None


def _dequantized(reader: _Reader, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert quantized weights to float32.

    int8 weights have a scale for each row, int16 weights one in all: the weight is the integer /
    scale.
    """
    scales = {
        name for name in arrays if name.endswith("_scale") and name.removesuffix("_scale") in arrays
    }
    out = {name: x for name, x in arrays.items() if name not in scales}
    for scale in scales:
        name, divisor = scale.removesuffix("_scale"), np.asarray(arrays[scale], np.float32)
        x = out[name].astype(np.float32)
        if divisor.size != 1 and divisor.shape != x.shape[: divisor.ndim]:
            raise reader.error(
                f"has scales of shape {divisor.shape} for {name!r} of shape {x.shape}: it is"
            )
        divisor = divisor.reshape(
            divisor.shape + (1,) * (x.ndim - divisor.ndim) if divisor.size != 1 else ()
        )
        with np.errstate(all="ignore"):  # non-finite numbers are rejected where they are used
            out[name] = x / divisor
    return out


def read_npz(path: Path) -> ModelFile:
    """Read the arrays of a NumPy archive with CTranslate2's names.

    Raises UserError if it cannot be read, or would fill the memory.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > _MOST_UNPACKED * path.stat().st_size:
            raise UserError(
                f"{path} would unpack to {unpacked:,} bytes, more than {_MOST_UNPACKED} times its"
                " own, as no weights do, and is not read. Copy the model again, from a source that"
                " you trust."
            )
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except UserError:
        raise
    except Exception as error:  # any error in the archive, its compression or its arrays
        raise UserError(
            f"{path} is not a readable NumPy archive (.npz): {first_line(error)}"
        ) from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise UserError(
                f"{path} is not a readable NumPy archive (.npz): its {name} is not an array."
            )
    return ModelFile(path, "", arrays)


def vocabulary_file(folder: Path, side: str) -> Path:
    """Return the token list of "source" or "target".

    Raises UserError if there is none.
    """
    names = [f"{name}_vocabulary.{kind}" for name in (side, "shared") for kind in ("json", "txt")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(
        f"there is no {folder / names[1]}: expected one token per line, in the order of the"
        f" embedding rows, or {names[0]}, or the same as shared_vocabulary."
    )


def read_tokens(path: Path) -> list[str]:
    """Read the tokens of a vocabulary, JSON or one on each line. Raises UserError."""
    try:
        text = path.read_bytes().decode()
        tokens = parse_json(text) if path.suffix == ".json" else _lines(text)
    except (UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path} is not a list of tokens: {error}") from None
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise UserError(f"{path} is not a list of tokens.")
    return tokens


def _lines(text: str) -> list[str]:
    r"""Return the lines of a text.

    Either "\r\n" ends all lines, or "\n" alone does, and "\r" may be a token.
    """
    end = (
        "\r\n" if all(line.endswith("\r") for line in text.removesuffix("\n").split("\n")) else "\n"
    )
    return text.removesuffix(end).split(end)
