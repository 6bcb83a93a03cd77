"""One preparation by many hosts: each tokenises its own contiguous share of the lines, host 0 joins the shares.

The store is the same, byte for byte, as one host makes it. Hosts talk through files that all see and through barriers.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Protocol

from etils import epath

from t2t_flax.data.preprocess import (
    COUNTS,
    Policies,
    encode,
    new_store,
    prepare_split,
    recipe_of,
    refuse_nothing,
    write_chunks,
)
from t2t_flax.data.sources.base import Source, Survey
from t2t_flax.data.store.remote import find, place_of, send
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.data.store.writer import turn
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write, is_remote


class Pod(Protocol):
    """This host among those of a run."""

    index: int
    count: int

    def barrier(self, name: str) -> None:
        """Returns when all hosts have come to it; raises where one is gone."""


def survey_once(source: Source, split: str, workdir: epath.Path, pod: Pod) -> Survey:
    """Host 0 reads the corpus through once, to count and fingerprint it; all hosts learn what it found."""
    note = workdir / f".survey-{split}.json"
    if pod.index == 0:
        atomic_write(note, json.dumps(dataclasses.asdict(source.survey())))
    pod.barrier(f"{split} is surveyed")
    found = json.loads(note.read_text())
    pod.barrier(f"the survey of {split} is read")
    if pod.index == 0:
        note.unlink()
    marks = tuple((line, tuple(offsets)) for line, offsets in found["marks"])
    return Survey(found["fingerprint"], found["count"], marks)


def prepare_together(
    source: Source,
    survey: Survey,
    tokenizers: TokenizerPair,
    folder: epath.PathLike,
    pod: Pod,
    *,
    processes: int = 0,
    progress: Callable[[int, int | None], None] | None = None,
    **policies,
) -> TokenStore:
    """`prepare_split` by all hosts of `pod` into a folder that all see. Every host goes through the same barriers."""
    if pod.count == 1:
        return prepare_split(source, tokenizers, folder, processes=processes, progress=progress, **policies)
    source.counted(survey.count)
    rules = Policies(**policies)
    recipe, digest = recipe_of(survey.fingerprint, tokenizers, rules)
    folder = epath.Path(folder)
    with turn(place_of(folder, digest)) if pod.index == 0 else contextlib.nullcontext():
        _prepare_parts(source, survey, tokenizers, folder, pod, rules, recipe, digest, processes, progress)
    store = find(folder, digest)
    if store is None:
        raise UserError(
            f"{folder} was made by host 0 and is not seen here: config.data.cache, or the workdir, must be a folder that "
            "all hosts share, or an object store (gs://...)."
        )
    return store


def _prepare_parts(source, survey, tokenizers, folder, pod, rules, recipe, digest, processes, progress) -> None:
    work = folder.with_name(f"{folder.name}.parts-{pod.count}")
    ready = work.with_name(f"{work.name}-not-needed")
    if pod.index == 0:
        if find(folder, digest):
            atomic_write(ready, "")
        else:
            ready.unlink(missing_ok=True)
    pod.barrier(f"{folder.name} is looked for")
    there = ready.exists()
    if not there:
        _make_part(source, survey, tokenizers, work, digest, pod, rules, processes, progress)
    pod.barrier(f"the parts of {folder.name} are made")
    if pod.index == 0 and not there:
        _join(source, tokenizers, folder, work, digest, recipe, pod.count, rules)
    pod.barrier(f"{folder.name} is whole")
    if pod.index == 0:
        ready.unlink(missing_ok=True)


def _part(work: epath.Path, digest: str, index: int) -> tuple[epath.Path, str]:
    """(folder of a host's part, its digest): a part of another corpus, or of another number of hosts, is not taken."""
    return work / str(index), hashlib.sha256(f"{digest} {work.name} {index}".encode()).hexdigest()


def _make_part(source, survey, tokenizers, work, digest, pod, rules, processes, progress) -> None:
    folder, part_digest = _part(work, digest, pod.index)
    if find(folder, part_digest):
        return
    first, last = survey.share(pod.index, pod.count)
    chunks = encode(source.read_range(first, last, survey), tokenizers, rules, processes)
    place = place_of(folder, part_digest)
    with new_store(place, tokenizers) as writer:
        about = dict(first=first, total=last - first, progress=progress)
        counts = write_chunks(writer, chunks, source, rules, **about)
        if counts["pairs_read"] != last - first:
            raise UserError(f"{source.spec} has changed while it was read; give the same command again")
        writer.meta.update(digest=part_digest, **counts)
    send(place, folder)
    _drop_copy(folder, place)


def _join(source, tokenizers, folder, work, digest, recipe, hosts, rules) -> None:
    place = place_of(folder, digest)
    with new_store(place, tokenizers) as writer:
        counts = dict.fromkeys(COUNTS, 0)
        for index in range(hosts):
            part, part_digest = _part(work, digest, index)
            meta = writer.append(part)
            if meta["digest"] != part_digest:
                raise UserError(f"{part} is not of this preparation; delete {work} and give the same command again")
            counts = {name: counts[name] + meta[name] for name in COUNTS}
        refuse_nothing(source, counts, rules)
        writer.meta.update(digest=digest, recipe=recipe, **counts)
    TokenStore.open(place)  # verifies it, before the other hosts open it
    send(place, folder)
    for old in folder.parent.glob(f"{folder.name}.parts-*"):
        old.rmtree(missing_ok=True)


def _drop_copy(folder: epath.Path, place) -> None:
    """A part in an object store is read from there once: this host's copy of it has done its work."""
    if is_remote(folder):
        epath.Path(place).rmtree(missing_ok=True)
