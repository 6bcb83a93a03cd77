"""Saved datasets of Hugging Face (`save_to_disk`): 'hf:FOLDER'.

'hf:FOLDER:SPLIT' for a folder with splits. The folder holds Arrow streams, which pyarrow reads
without `datasets`. The columns are the languages, or others (`columns`).
"""

import re
from collections.abc import Sequence
from typing import IO, Any

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.data.sources.files import path_of
from t2t_flax.errors import UserError, first_line, require
from t2t_flax.extensions.corpora.arrow import is_damage, language_columns, of_schema, read_pairs
from t2t_flax.extensions.corpora.columns import Columns, parse_columns
from t2t_flax.json_file import parse_json

_PREFIX = "hf"
_SPEC = re.compile(r"(?P<folder>(?:\w+://)?[^:]*)(?::(?P<split>[^:,]*))?(?P<columns>:.*)?")
"""Only columns contain a comma."""
_STATE, _SPLITS = "state.json", "dataset_dict.json"
_SELECTIONS = ("_indices_files", "_indices_data_files")
"""Keys with which `datasets` before 2.10 stored a selection of rows."""
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""End marker of an Arrow stream.

pyarrow takes a stream that was cut off between two record batches for complete.
"""


class SavedDatasetSource(Source):
    """Rows of one split, in order.

    One record batch at a time is in memory; `datasets` writes 1,000 rows in each.

    Args:
        columns: None = the columns of the languages.
    """

    def __init__(
        self,
        spec: str,
        folder: epath.Path,
        paths: Sequence[epath.Path],
        languages: tuple[str, str],
        columns: Columns | None,
    ):
        super().__init__(spec, files=paths)
        self._folder, self._columns = folder, []
        for path in paths:
            with path.open("rb") as file:
                schema = _stream(file, path).schema
            self._columns.append(
                of_schema(schema, columns or language_columns(schema, languages, path), path)
            )
        self.reasons = columns.reasons if columns else {}

    def read(self):
        for path, columns in zip(self.files, self._columns, strict=True):
            with path.open("rb") as file:
                stream = _stream(file, path)
                present = stream.schema.names
                names = {
                    name if name in present else name.partition(".")[0]: None
                    for name in columns.names
                }
                yield from read_pairs((batch.select([*names]) for batch in stream), columns, path)
                if file.read(1):
                    raise UserError(
                        f"{path} is damaged: its stream ends before the file; save or copy the"
                        " dataset again"
                    )

    def fingerprint(self):
        return sha256_of(_PREFIX, str(self._columns), *map(file_sha256, self.files))

    def where(self, i):
        return f"{self._folder} row {i + 1}"


def _stream(file: IO[bytes], path: epath.Path) -> Any:
    """Return a `pyarrow.RecordBatchStreamReader` for a complete file."""
    import pyarrow

    try:
        stream = pyarrow.ipc.open_stream(file)
        _ = stream.schema.names  # decodes the names
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        if not is_damage(error):
            raise
        raise UserError(f"{path} is not an Arrow stream: {first_line(error)}") from None
    position = file.tell()
    file.seek(-len(_END_OF_STREAM), 2)
    if file.read() != _END_OF_STREAM:
        raise UserError(
            f"{path} is cut off: it has no end of an Arrow stream; save or copy the dataset again"
        )
    file.seek(position)
    return stream


def _json_of(path: epath.Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_bytes())
    except ValueError as error:
        raise UserError(
            f"{path} is damaged: it is not JSON ({error}); save or copy the dataset again"
        ) from None
    if not isinstance(content, dict):
        raise UserError(
            f"{path} is damaged: it is not a JSON object; save or copy the dataset again"
        )
    return content


def _split_folder(folder: epath.Path, split: str, label: str) -> epath.Path:
    """Return the folder of a dataset or of one of its splits.

    Raises UserError if there is none.
    """
    if not folder.exists():
        raise UserError(f"{label}: there is no folder {folder}")
    if (folder / _SPLITS).exists():
        splits = list(map(str, _json_of(folder / _SPLITS).get("splits", ())))
        if split not in splits:
            said = f"has no split {split!r}" if split else "has splits"
            raise UserError(
                f"{label}: {folder} {said}; expected {_PREFIX}:FOLDER:SPLIT with"
                f" {', '.join(splits)}"
            )
        folder = folder / split
    elif split:
        raise UserError(
            f"{label}: {folder} has no splits ({_SPLITS}); a dataset without splits is"
            f" {_PREFIX}:FOLDER"
        )
    if not (folder / _STATE).exists():
        raise UserError(
            f"{label}: {folder} holds no saved dataset ({_STATE}). Save one with"
            " `dataset.save_to_disk(FOLDER)` of the package datasets; Parquet files of a dataset"
            " are read with parquet:PATTERN."
        )
    return folder


def _data_files(folder: epath.Path) -> list[epath.Path]:
    state = _json_of(folder / _STATE)
    if any(state.get(name) for name in _SELECTIONS):
        raise UserError(
            f"{folder} was saved by an old version of datasets, with a selection of its rows: load"
            " it and save it again with datasets 2.10 or later"
        )
    try:
        paths = [folder / item["filename"] for item in state["_data_files"]]
    except (KeyError, TypeError):
        raise UserError(
            f"{folder / _STATE} is damaged: it names no data files; save the dataset again"
        ) from None
    for path in paths:
        if not path.exists():
            raise UserError(
                f"{path} is missing, which {folder / _STATE} names; save or copy the dataset again"
            )
    return paths


def open_spec(spec: str, context: Context) -> SavedDatasetSource:
    """Open the corpus. Raises UserError if it cannot be read."""
    require("pyarrow", "arrow", context.label)
    match = _SPEC.fullmatch(spec.strip().removeprefix(f"{_PREFIX}:"))
    assert match  # the last part takes anything
    folder = _split_folder(
        path_of(match["folder"].strip(), context), (match["split"] or "").strip(), context.label
    )
    columns = parse_columns(match["columns"] or "", context)[1]
    return SavedDatasetSource(spec, folder, _data_files(folder), context.languages, columns)
