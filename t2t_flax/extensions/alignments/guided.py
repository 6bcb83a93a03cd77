"""Guided alignments (Chen et al. 2016): the word alignments of training pairs as arrays of the batches."""

import functools
import hashlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t2t_flax.cli.lines import iterate_lines
from t2t_flax.config import Config
from t2t_flax.data.dataset import split_source
from t2t_flax.data.file_hashes import hash_files
from t2t_flax.data.hooks import DataHook
from t2t_flax.data.sources import Source, sha256_of
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.extensions.alignments import Alignments
from t2t_flax.extensions.alignments.links import Links, check_words, parse_gold
from t2t_flax.extensions.alignments.words import WordTokens, tokens_of
from t2t_flax.tasks import task_of

BEGIN, END = "alignment_begin", "alignment_end"
_ROW = 1 << 32


class GuidedHook(DataHook):
    def __init__(self, config: Config):
        self._config = config

    def check_tokenizers(self, tokenizers):
        _files(self._config)  # before all pairs are tokenised

    def more_arrays(self, tokenizers):
        return AlignmentArrays(self._config, tokenizers)

    def describe(self, corpus):
        arrays = AlignmentArrays(self._config, corpus.tokenizers)
        found = sum(arrays.has(corpus.train.source(i), corpus.train.target(i)) for i in range(corpus.train.num_pairs))
        rest = corpus.train.num_pairs - found
        more = f"; the text of {rest:,} pairs is tokenised otherwise than its words, and they have none" if rest else ""
        return [f"guided alignments: of {found:,} pairs, {arrays.linked:,} linked target tokens{more}"]


def hook(config: Config) -> GuidedHook:
    """Of a run whose alignments.guided is set."""
    return GuidedHook(config)


class AlignmentArrays:
    """For each target token the tokens [begin, end) of the source word that it is linked to, as positions in its row; (0, 0) for
    none.

    Pairs are found by their ids, so that alignments follow them through filters, shuffling and packing.
    """

    names = (BEGIN, END)

    def __init__(self, config: Config, tokenizers: TokenizerPair):
        self._config, self._tokenizers, self._lock = config, tokenizers, threading.Lock()

    def __call__(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of rows, see `data.batching.batches.Batch.rows`. Raises UserError for alignments that do not fit."""
        length = arrays["target"].shape[-1]
        source, target = arrays["source"].reshape(-1), arrays["target"].reshape(-1)
        out = np.zeros((2, target.size), np.int32)
        sources = _sentences(arrays["source_segments"])
        for place, (first, last) in _sentences(arrays["target_segments"]).items():
            begin, end = sources.get(place, (0, 0))
            if (spans := self._spans(source[begin:end], target[first:last])) is not None:
                out[:, first:last] = np.where(spans[1] > spans[0], spans + begin % length, 0)
        return {name: x.reshape(arrays["target"].shape) for name, x in zip(self.names, out, strict=True)}

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """Of the files. Raises UserError where one is missing."""
        hashes = hash_files(name for name, _ in _files(self._config))
        return {"word alignments": sha256_of(*(file.sha256 for file in hashes))}

    def has(self, source: np.ndarray, target: np.ndarray) -> bool:
        """Whether the pair of these ids has an alignment."""
        return self._spans(source, target) is not None

    @property
    def linked(self) -> int:
        """Target tokens with a link."""
        return int((self._table.spans[:, 1] > 0).sum())

    def _spans(self, source: np.ndarray, target: np.ndarray) -> np.ndarray | None:
        """int32 [2, target tokens], from the beginning of the source."""
        keys, offsets, spans = self._table
        key = np.uint64(_key(source, target))
        i = int(np.searchsorted(keys, key))
        return spans[offsets[i] : offsets[i] + len(target)].T if i < len(keys) and keys[i] == key else None

    @functools.cached_property
    def _table(self) -> "_Table":
        with self._lock:
            return _read(self._config, self._tokenizers)


class _Table(NamedTuple):
    """keys: uint64 [pairs], ascending. offsets: int64 [pairs], where the spans of each begin. spans: int32 [target tokens, 2]."""

    keys: np.ndarray
    offsets: np.ndarray
    spans: np.ndarray


@functools.lru_cache(2)
def _read(config: Config, tokenizers: TokenizerPair) -> _Table:
    keys, spans = [], []
    for source, target, links in _pairs(config, tokenizers):
        places: dict[int, tuple[int, int]] = {}
        for word, group in itertools.groupby(range(len(source.ids)), key=source.words.__getitem__):
            ids = list(group)
            places[word] = ids[0], ids[-1] + 1
        first = {t: s for s, t in sorted(links, reverse=True) if s in places}  # of several links that to the first word
        keys.append(_key(np.array(source.ids), np.array(target.ids)))
        spans.append(np.array([places[first[w]] if w in first else (0, 0) for w in target.words], np.int32))
    order = np.argsort(np.array(keys, np.uint64), kind="stable")
    offsets = np.cumsum([0, *map(len, spans)], dtype=np.int64)[:-1]
    return _Table(np.array(keys, np.uint64)[order], offsets[order], np.concatenate(spans))


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


def _pairs(config: Config, tokenizers: TokenizerPair) -> Iterator[tuple[WordTokens, WordTokens, Links]]:
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
            links = parse_gold(line, where).possible
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


def _key(source: np.ndarray, target: np.ndarray) -> int:
    content = source.astype("<i4").tobytes() + b"\xff" * 4 + target.astype("<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
