"""Corpora of mtdata's index (OPUS, WMT, ParaCrawl, Neulab ...): 'mtdata:IDENTIFIER', with the package mtdata.

mtdata downloads a corpus once, into its cache ($MTDATA, by default ~/.mtdata), and parses its format; the files stay there. An
identifier is GROUP-NAME-VERSION-LANGUAGE-LANGUAGE; `mtdata list -id -l deu-eng` lists those of two languages.
"""

import bz2
import contextlib
import functools
import gzip
import importlib.metadata
import logging
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.errors import UserError, first_line, install_hint

_PREFIX = "mtdata"
_SUGGESTIONS = 5
_HUGGING_FACE = "huggingface.co"


class MtdataSource(Source):
    """The segments of one corpus, in the order of its files.

    entry: of mtdata's index. paths: what mtdata parses. files: the downloads, which the fingerprint covers, with the version
    of mtdata, whose parser reads them. swap: the corpus has the target language first.
    """

    def __init__(self, spec: str, entry: Any, paths: Any, files: list[Path], swap: bool):
        super().__init__(spec, files=[epath.Path(file) for file in files])
        self._entry, self._paths, self._files, self._swap = entry, paths, files, swap

    def read(self):
        i, records = 0, None
        while True:
            try:
                records = records or self._records()
                record = next(records, None)
            except Exception as error:  # noqa: BLE001  (of archives, decompression, XML, missing columns, assertions)
                raise UserError(
                    f"{self.where(i)}: mtdata cannot read it from {self._files[0]}: {type(error).__name__}: "
                    f"{first_line(error)}"
                ) from None
            if record is None:
                return
            texts = list(record[:2])
            if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
                raise UserError(f"{self.where(i)}: expected two texts, found {texts}")
            yield tuple(texts[::-1] if self._swap else texts)
            i += 1

    def _records(self) -> Iterator[Any]:
        with _quiet():
            return _import().Parser(self._paths, ext=self._entry.in_ext or None, ent=self._entry).read_segs(False)

    def fingerprint(self):
        parser = importlib.metadata.version("mtdata")
        parts = [_PREFIX, parser, str(self._entry.did), str(self._swap), *map(file_sha256, self.files)]
        return sha256_of(*parts)

    def where(self, i):
        return f"{self.spec} segment {i + 1}"


def _import() -> Any:
    """The names of mtdata that are used here."""
    with _quiet():
        import mtdata
        import mtdata.utils
        from mtdata.cache import Cache
        from mtdata.entry import DatasetId
        from mtdata.index import Index
        from mtdata.iso.bcp47 import BCP47Tag, bcp47
        from mtdata.parser import Parser
    # mtdata prefers the programs xz, bzip2 and pigz where they are installed, and takes a file that they cannot read to its end
    # for complete.
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    for suffix, opener in openers.items():
        mtdata.utils.COMPRESSORS[suffix] = functools.partial(_open_compressed, opener)
    names = dict(Cache=Cache, DatasetId=DatasetId, Index=Index, BCP47Tag=BCP47Tag, bcp47=bcp47, Parser=Parser)
    return SimpleNamespace(cache=mtdata.cache_dir, index_file=mtdata.cached_index_file, **names)


def _open_compressed(opener: Callable[..., Any], path: Path, mode: str, **options: Any) -> Any:
    """Opens a compressed file, whose lines end with a line feed alone, as those of files that are not compressed."""
    return opener(path, mode, **options, **({"newline": "\n"} if "t" in mode else {}))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what mtdata logs, and with the root logger as it was: mtdata makes it print INFO of all packages."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def drop(record: logging.LogRecord) -> bool:  # of the root logger itself, which mtdata uses
        return False

    root.addFilter(drop)
    try:
        yield
    finally:
        root.removeFilter(drop)
        root.handlers[:] = handlers
        root.setLevel(level)


def _entry(lib: Any, identifier: str, label: str) -> Any:
    """The entry of the index. Raises UserError with similar identifiers if there is none."""
    with _quiet():
        try:
            lib.cache.mkdir(parents=True, exist_ok=True)
            index = lib.Index.get_instance()
        except Exception as error:  # noqa: BLE001  (of the disk, of a pickle that is cut off)
            raise UserError(
                f"{label}: mtdata cannot use its index {lib.index_file}: {type(error).__name__}: {first_line(error)}. Remove the "
                "file if it is damaged, or set MTDATA to another folder."
            ) from None
        try:
            return index[lib.DatasetId.parse(identifier)]
        except Exception:  # noqa: BLE001  (a language that is no language, a missing part, an unknown corpus)
            parts = identifier.lower().split("-")
            name, languages = "-".join(parts[:2]), parts[3:]
            similar = (str(entry.did) for entry in index.get_entries())
            found = [did for did in similar if did.lower().startswith(name)] if name else []
            found.sort(key=lambda did: did.split("-")[3:] != languages)
    more = f" Similar: {', '.join(found[:_SUGGESTIONS])}." if found else ""
    raise UserError(
        f"{label}: mtdata's index has no corpus {identifier!r}; expected mtdata:GROUP-NAME-VERSION-LANGUAGE-LANGUAGE.{more} "
        "`mtdata list -id -l LANGUAGE-LANGUAGE` lists the corpora of two languages."
    )


def _swapped(lib: Any, entry: Any, languages: tuple[str, str], label: str) -> bool:
    """Whether the entry has the target language first. Raises UserError if it is of other languages."""
    with _quiet():
        try:
            fits, swap = lib.BCP47Tag.check_compat_swap(tuple(map(lib.bcp47, languages)), entry.did.langs)
        except Exception:  # noqa: BLE001  (unknown and ambiguous languages, a corpus of one language)
            fits = swap = False
    if not fits:
        raise UserError(
            f"{label}: the corpus has the languages {'-'.join(map(str, entry.did.langs))}; expected "
            f"{languages[0]}-{languages[1]} (config.data.source_language, config.data.target_language)"
        )
    return bool(swap)


def open_spec(spec: str, context: Context) -> MtdataSource:
    """Opens the corpus. Raises UserError if it cannot be read."""
    try:
        lib = _import()
    except ImportError:
        raise UserError(f"{context.label} needs mtdata: {install_hint('mtdata')}.") from None
    entry = _entry(lib, spec.removeprefix(f"{_PREFIX}:").strip(), context.label)
    swap = _swapped(lib, entry, context.languages, context.label)
    urls = [entry.url] if isinstance(entry.url, str) else list(entry.url)
    if any(_HUGGING_FACE in url for url in urls):
        raise UserError(
            f"{context.label}: the corpus is a dataset of Hugging Face. Save it with the package datasets (save_to_disk) and "
            "give hf:FOLDER:SPLIT."
        )
    cache = lib.Cache(lib.cache)
    try:
        with _quiet():
            paths = cache.get_entry(entry)
            if entry.in_ext == "opus_xces":
                files = list(paths)
            else:
                name = entry.filename if isinstance(entry.url, str) else None
                files = [cache.get_local_path(url, name, fix_missing=False, entry=entry) for url in urls]
    except Exception as error:  # noqa: BLE001  (of the network, the disk, the archive)
        raise UserError(
            f"{context.label}: mtdata could not download {', '.join(urls)} into {lib.cache}: {type(error).__name__}: "
            f"{first_line(error)}. Run `mtdata cache -di {entry.did}` where the download works, copy its cache, and set MTDATA "
            "to that folder."
        ) from None
    return MtdataSource(spec, entry, paths, files, swap)
