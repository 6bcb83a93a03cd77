"""ZeRO-1 and several slices: which arrays are sharded, with unchanged results."""

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, random_pairs, small_config, write_store
from helpers.refusals import refused

from t2t_flax.config import Mesh
from t2t_flax.data.batching.batches import Batches
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.prefetcher import put_batch
from t2t_flax.training.train_step import jit_train_step


def curve(config, store):
    mesh = devices_mesh(config.mesh.data, config.mesh.fsdp)
    model, tx, state, shardings = model_and_state(config, mesh)
    batches = Batches(store, config.data, seed=0, shards=mesh_lib.batch_shards(mesh))
    step = jit_train_step(config, model, tx, parametrization_of(config), mesh, shardings)
    losses = []
    with mesh_lib.use(mesh):
        for k in range(6):
            state, metrics = step(state, put_batch(batches.batch(k), mesh).arrays)
            losses.append(float(metrics["loss"]))
    return losses, state


def bytes_on_a_device(tree) -> int:
    return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))


@pytest.mark.slow
def test_zero1_shards_only_the_optimizer_state(tmp_path):
    store = write_store(tmp_path / "store", random_pairs(60))
    keys = dict(optimizer=dict(ema_decay=0.9), model=dict(d_model=32))
    plain, replicated = curve(small_config(mesh=dict(data=1), **keys), store)
    zero, divided = curve(small_config(mesh=dict(data=2, fsdp=4, fsdp_mode="zero1"), **keys), store)
    np.testing.assert_allclose(zero, plain, rtol=1e-5)
    for tree in (divided.params, divided.ema):
        assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(tree))
    moments, before = divided.opt_state[1].mu, replicated.opt_state[1].mu
    assert bytes_on_a_device(moments) < 0.35 * bytes_on_a_device(before)
    fsdp, sharded = curve(small_config(mesh=dict(data=2, fsdp=4), **keys), store)
    np.testing.assert_allclose(fsdp, plain, rtol=1e-5)
    assert bytes_on_a_device(sharded.params) < 0.35 * bytes_on_a_device(divided.params)
    for a, b in zip(
        jax.tree.leaves(divided.params), jax.tree.leaves(replicated.params), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_only_the_data_axis_crosses_slices():
    devices = jax.devices()[:8]
    mesh = mesh_lib.make_mesh(Mesh(data=4, tensor=2, slices=2), devices)
    first = {d.id for d in mesh.devices[:2].ravel()}
    assert first == {d.id for d in devices[:4]}
    with refused("config.mesh.data"):
        mesh_lib.make_mesh(Mesh(data=1, fsdp=8, slices=2), devices)
    with refused("config.mesh.slices"):
        mesh_lib.make_mesh(Mesh(data=8, slices=3), devices)


def test_slices_follow_the_devices_slice_index():
    class Device:
        def __init__(self, id, slice_index):
            self.id, self.slice_index = id, slice_index

    devices = [Device(i, i % 2) for i in range(4)]
    assert [[d.id for d in part] for part in mesh_lib.slices_of(devices)] == [[0, 2], [1, 3]]
    with refused("config.mesh.slices"):
        mesh_lib.slices_of(devices, 4)
