"""Each host builds only its own rows; together the hosts build the batch of a single host."""

import dataclasses

import numpy as np
import pytest
from helpers.configs import DATA, devices_mesh, random_pairs, write_store
from jax.sharding import NamedSharding

from t2t_flax.data.batching.batches import Batches, validation_batches
from t2t_flax.distributed import mesh as mesh_lib

KINDS = {
    "packed": {},
    "buckets": dict(batching="buckets"),
    "accumulation": dict(microbatch_tokens=24),
}


class RecordingStore:
    """A store that records which ids are read."""

    def __init__(self, store):
        self._store, self.read = store, {"source": set(), "target": set()}

    def __getattr__(self, name):
        return getattr(self._store, name)

    def sentences(self, pairs):
        return tuple(
            sentences._replace(ids=_RecordingArray(sentences.ids, read))
            for sentences, read in zip(
                self._store.sentences(pairs), self.read.values(), strict=True
            )
        )


class _RecordingArray:
    def __init__(self, ids, indices):
        self._ids, self._indices = ids, indices

    def take(self, index):
        self._indices.update(index.tolist())
        return self._ids.take(index)


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "store", random_pairs(300, longest=22))


def batches_of(kind, store, hosts=4):
    return Batches(store, dataclasses.replace(DATA, **KINDS[kind]), seed=0, shards=hosts)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_all_hosts_form_the_batch(store, kind):
    batches, hosts = batches_of(kind, store), 4
    for k in range(0, batches.updates_per_epoch, 3):
        batch = batches.batch(k)
        share = batch.shape.rows // hosts
        parts = [batch.rows(share * h, share * (h + 1)) for h in range(hosts)]
        for name, full in batch.arrays.items():
            assert {part[name].shape for part in parts} == {
                (batch.shape.micro, share, batch.shape.length)
            }
            np.testing.assert_array_equal(
                np.concatenate([part[name] for part in parts], axis=1), full
            )
        assert batch.target_tokens == (batch.arrays["target_segments"] > 0).sum(), (
            "counts are of the whole"
        )
        assert batch.source_tokens == (batch.arrays["source_segments"] > 0).sum()
    assert kind != "accumulation" or batch.shape.micro > 1


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_other_rows_are_not_read(store, kind):
    recording = RecordingStore(store)
    batch = batches_of(kind, recording).batch(1)
    assert not recording.read["source"], "finding the rows reads lengths alone"
    half = batch.shape.rows // 2
    own_rows = batch.rows(0, half)
    positions_read = {side: set(places) for side, places in recording.read.items()}
    batch.rows(half, batch.shape.rows)
    for side, segments in (("source", "source_segments"), ("target", "target_segments")):
        assert len(positions_read[side]) == (own_rows[segments] > 0).sum() > 0
        assert (
            len(recording.read[side])
            == getattr(batch, f"{side}_tokens")
            > len(positions_read[side])
        )


def test_validation_rows_of_hosts(store):
    recording = RecordingStore(store)
    ((shape, batches),) = validation_batches(recording, DATA, shards=2, tokens=200)
    for batch in batches():
        for part in recording.read.values():
            part.clear()
        own_rows = batch.rows(0, shape.rows // 2)
        assert len(recording.read["target"]) == (own_rows["target_segments"] > 0).sum()
        for name, full in batch.arrays.items():
            np.testing.assert_array_equal(own_rows[name], full[:, : shape.rows // 2])


@pytest.mark.parametrize("spec", [mesh_lib.MICRO_ROWS, mesh_lib.ROWS])
def test_global_arrays_read_contiguous_rows_once(spec):
    mesh = devices_mesh(2, 2, 2)
    shape = (3, 8, 5) if spec == mesh_lib.MICRO_ROWS else (8, 5)
    full, requests = np.arange(np.prod(shape), dtype=np.int32).reshape(shape), []

    def rows(first, last):
        requests.append((first, last))
        return {"x": np.take(full, range(first, last), axis=len(shape) - 2)}

    array = mesh_lib.to_global(rows, shape, NamedSharding(mesh, spec))["x"]
    np.testing.assert_array_equal(array, full)
    assert array.sharding.spec == spec and requests == [(0, 8)]


def test_global_arrays_read_no_row_of_another_host():
    """If the addressable devices hold rows 2-3 and 6-7, no other row is read."""
    full, requests = np.arange(16, dtype=np.int32).reshape(8, 2), []

    class Elsewhere:
        def addressable_devices_indices_map(self, shape):
            return {
                n: (slice(first, first + 1), slice(None)) for n, first in enumerate((2, 3, 6, 7))
            }

    def rows(first, last):
        requests.append((first, last))
        return {"x": full[first:last]}

    pieces = {}
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:

        def make(shape, sharding, callback):
            for index in sharding.addressable_devices_indices_map(shape).values():
                pieces[index[0].start] = callback(index)

        patch.setattr(mesh_lib.jax, "make_array_from_callback", make)
        mesh_lib.to_global(rows, (8, 2), Elsewhere())
    assert requests == [(2, 4), (6, 8)]
    for row, piece in pieces.items():
        np.testing.assert_array_equal(piece, full[row : row + 1])
