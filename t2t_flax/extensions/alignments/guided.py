"""Guided alignments (Chen et al. 2016): the word alignments of training pairs as arrays of the batches."""

import array
import contextlib
import functools
import hashlib
import io
import itertools
import threading
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from t2t_flax.cli.lines import iterate_lines
from t2t_flax.config import Config
from t2t_flax.data.dataset import Corpus, split_source
from t2t_flax.data.file_hashes import hash_files
from t2t_flax.data.hooks import DataHook
from t2t_flax.data.sources import Source, sha256_of
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.extensions.alignments import Alignments
from t2t_flax.extensions.alignments.links import check_words, parse_links
from t2t_flax.extensions.alignments.words import WordTokens, tokens_of
from t2t_flax.filesystem import atomic_write
from t2t_flax.tasks import task_of

BEGIN, END = "alignment_begin", "alignment_end"
_ROW = 1 << 32
_NONE = -2
"""No word, also not what is no word: see `WordTokens`."""


class GuidedHook(DataHook):
    def __init__(self, config: Config):
        self._config = config

    def check_tokenizers(self, tokenizers):
        _files(self._config)  # before all pairs are tokenised

    def more_arrays(self, corpus):
        return AlignmentArrays(self._config, corpus)

    def describe(self, corpus):
        table = AlignmentArrays(self._config, corpus).table
        rest, linked = corpus.train.num_pairs - table.pairs, int((table.spans[:, 1] > 0).sum())
        more = f"; the text of {rest:,} pairs is tokenised otherwise than its words, and they have none" if rest else ""
        return [f"guided alignments: of {table.pairs:,} pairs, {linked:,} linked target tokens{more}"]


def hook(config: Config) -> GuidedHook:
    """Of a run whose alignments.guided is set."""
    return GuidedHook(config)


class AlignmentArrays:
    """For each target token the tokens [begin, end) of the source word that it is linked to, as positions in its row; (0, 0) for
    none.

    Pairs are found by their ids, so that alignments follow them through filters, shuffling and packing.
    """

    names = (BEGIN, END)

    def __init__(self, config: Config, corpus: Corpus):
        self._config, self._corpus, self._lock = config, corpus, threading.Lock()

    def __call__(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of rows, see `data.batching.batches.Batch.rows`. Raises UserError for alignments that do not fit."""
        length = arrays["target"].shape[-1]
        source, target = arrays["source"].reshape(-1), arrays["target"].reshape(-1)
        out = np.zeros((2, target.size), np.int32)
        sources = _sentences(arrays["source_segments"])
        for place, (first, last) in _sentences(arrays["target_segments"]).items():
            begin, end = sources.get(place, (0, 0))
            if (spans := self.spans(source[begin:end], target[first:last])) is not None:
                out[:, first:last] = np.where(spans[1] > spans[0], spans + begin % length, 0)
        return {name: x.reshape(arrays["target"].shape) for name, x in zip(self.names, out, strict=True)}

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """Of the files. Raises UserError where one is missing."""
        hashes = hash_files(name for name, _ in _files(self._config))
        return {"word alignments": sha256_of(*(file.sha256 for file in hashes))}

    def spans(self, source: np.ndarray, target: np.ndarray) -> np.ndarray | None:
        """int32 [2, target tokens], from the beginning of the source, of the pair of these ids; None without an alignment."""
        keys, offsets, spans, _ = self.table
        key = np.uint64(_key(source, target))
        i = int(np.searchsorted(keys, key))
        return spans[offsets[i] : offsets[i] + len(target)].T if i < len(keys) and keys[i] == key else None

    @functools.cached_property
    def table(self) -> "Table":
        """Of all pairs. It is kept in the folder of the training store, which says from which text and tokenizers it is."""
        with self._lock:
            path = self._corpus.train.folder / f"alignments-{self.digests['word alignments'][:32]}.npz"
            with contextlib.suppress(OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
                with np.load(path) as arrays:
                    return Table(*(arrays[name] for name in ("keys", "offsets", "spans")), int(arrays["pairs"]))
            made, file = _read(self._config, self._corpus), io.BytesIO()
            np.savez(file, **made._asdict())
            with contextlib.suppress(OSError):  # the cache of another account, for example
                atomic_write(path, file.getvalue())
            return made


class Table(NamedTuple):
    """keys: uint64 [pairs], ascending. offsets: int64 [pairs], where the spans of each begin. spans: int32 [target tokens, 2].
    pairs: of the training store, those with an alignment.
    """

    keys: np.ndarray
    offsets: np.ndarray
    spans: np.ndarray
    pairs: int


def _read(config: Config, corpus: Corpus) -> Table:
    keys, lengths, begins, ends = [], [], array.array("i"), array.array("i")
    for source, target, links in _pairs(config, corpus.tokenizers):
        first_token: dict[int, int] = {}
        last_token: dict[int, int] = {}
        for i, word in enumerate(source.words):
            first_token.setdefault(word, i)
            last_token[word] = i + 1
        linked: dict[int, int] = {}
        for s, t in links:  # of several links that to the first word
            if s in first_token and s < linked.get(t, s + 1):
                linked[t] = s
        words = [linked.get(word, _NONE) for word in target.words]
        begins.extend([first_token.get(word, 0) for word in words])
        ends.extend([last_token.get(word, 0) for word in words])
        lengths.append(len(words))
        keys.append(_key(source.ids, target.ids))
    known, store = set(keys), corpus.train
    pairs = sum(_key(store.source(i), store.target(i)) in known for i in range(store.num_pairs))
    order = np.argsort(np.array(keys, np.uint64), kind="stable")
    offsets = np.cumsum([0, *lengths], dtype=np.int64)[:-1]
    spans = np.stack([np.array(begins, np.int32), np.array(ends, np.int32)], axis=1)
    return Table(np.array(keys, np.uint64)[order], offsets[order], spans, pairs)


def _files(config: Config) -> list[tuple[str, Source]]:
    """The files of alignments, each with its source of data.train. Raises UserError where they are missing."""
    files = [name.strip() for name in Alignments.of(config).guided.split(",")]
    parts = split_source(task_of(config), "train").parts
    if len(files) != len(parts):
        raise UserError(
            f"config.alignments.guided names {len(files)} files, config.data.train {len(parts)} sources: name one for each."
        )
    for name in files:
        if not Path(name).is_file():
            raise UserError(f"config.alignments.guided: no file {name}.")
    return list(zip(files, parts, strict=True))


def _pairs(
    config: Config, tokenizers: TokenizerPair
) -> Iterator[tuple[WordTokens, WordTokens, Collection[tuple[int, int]]]]:
    """The tokens of each pair of data.train, and its links. Raises UserError for files that do not fit."""
    data = config.data
    for name, part in _files(config):
        lines, count = iterate_lines(name), 0
        for row in part.rows():
            line, count = next(lines, None), count + 1
            if line is None:
                raise UserError(
                    f"{name} has {count - 1} lines, and {part.spec} more pairs: expected one for each pair."
                )
            if isinstance(row, str):
                continue
            where, own = f"{name} line {count}", part.without_tag(row[0])
            links = parse_links(line, where)
            check_words(links, len(own.split()), len(row[1].split()), where)
            limit, eos = data.max_length, data.source_eos
            source = tokens_of(tokenizers.source, row[0], line=own, limit=limit - (not eos), eos=eos)
            yield source, tokens_of(tokenizers.target, row[1], limit=limit), links
        if next(lines, None) is not None:
            raise UserError(f"{name} has more lines than the {count} pairs of {part.spec}: expected one for each pair.")


def _sentences(segments: np.ndarray) -> dict[int, tuple[int, int]]:
    """Where each sentence of rows [..., L] begins and ends in all rows one after another, by its row and segment."""
    rows = np.arange(segments.size) // segments.shape[-1]
    places = np.where(segments.reshape(-1) > 0, rows * _ROW + segments.reshape(-1), 0)
    edges = np.flatnonzero(np.diff(places, prepend=0, append=0)).tolist()
    return {int(places[a]): (a, b) for a, b in itertools.pairwise(edges) if places[a]}


def _key(source: ArrayLike, target: ArrayLike) -> int:
    content = np.asarray(source, "<i4").tobytes() + b"\xff" * 4 + np.asarray(target, "<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
