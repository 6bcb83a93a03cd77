"""Text files as sources: 'SRC,TGT' with one sentence a line.

The files are plain or compressed (.gz, .bz2, .xz, .zst).
"""

import codecs
import itertools
from collections.abc import Iterator

from etils import epath

from t2t_flax.data.compression import HEAD, SUFFIXES, decompressed, form_of, is_damage
from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.data.sources.files import open_files
from t2t_flax.errors import UserError


class TextSource(Source):
    """File of source sentences and one or more files of references.

    Line i of each reference file translates line i of the first file.
    """

    def __init__(self, spec: str, source: epath.Path, *references: epath.Path):
        super().__init__(spec, files=[source, *references])

    @property
    def reference_count(self):  # type: ignore[override]
        return len(self.files) - 1

    def read(self):
        streams = [lines(path) for path in self.files]
        for i, line in enumerate(itertools.zip_longest(*streams)):
            if None in line:
                remaining = (
                    0 if text is None else 1 + sum(1 for _ in s)
                    for text, s in zip(line, streams, strict=True)
                )
                raise self._unequal([i + count for count in remaining])
            yield line

    def fingerprint(self):
        return sha256_of("text", *map(file_sha256, self.files))

    def _unequal(self, counts: list[int]) -> UserError:
        (first, count), *others = zip(self.files, counts, strict=True)
        return UserError(
            f"{first} has {count} lines and"
            f" {' and '.join(f'{path} has {n}' for path, n in others)}: line i of one must be the"
            " translation of line i of the other"
        )

    def where(self, i):
        return ", ".join(f"{path} line {i + 1}" for path in self.files)


def open_spec(spec: str, context: Context) -> Source:
    """Open the files, or all files that match patterns.

    Raises UserError if one is missing.
    """
    names = [name.strip() for name in spec.split(",")]
    return open_files(spec, names, context, TextSource)


def lines(path: epath.Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, plain or compressed, without line ends.

    The first bytes tell whether and how it is compressed, whatever its name. Only the byte 0x0A
    ends a line, so that no other character can misalign the two sides. One 0x0D before it is
    removed, and a byte order mark at the beginning of the file. Raises UserError with the place
    where the file is not UTF-8 or its compressed data are damaged.
    """
    number, form = 0, ""
    try:
        with path.open("rb") as raw:
            head = raw.read(HEAD)
            form = form_of(head, path.suffix)
            if form and not head:  # gzip and zstd accept empty data
                raise EOFError("the file is empty")
            raw.seek(0)
            with decompressed(raw, form) as texts:
                for text in texts:
                    number += 1
                    if number == 1:
                        text = text.removeprefix(codecs.BOM_UTF8)
                        if not text:
                            return
                    yield text.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        plain = (
            f" (it does not begin as {path.suffix} data does, and is read as text)"
            if path.suffix in SUFFIXES
            else ""
        )
        raise UserError(
            f"{path} line {number}: byte 0x{byte:02x} at offset {error.start} of the line is not"
            f" valid UTF-8 ({error.reason}){'' if form else plain}; convert the file to UTF-8"
        ) from None
    except Exception as error:
        if not is_damage(error, form):
            raise
        raise UserError(
            f"{path}: damaged {form} data after line {number} ({error}); download or copy the file"
            " again"
        ) from None
