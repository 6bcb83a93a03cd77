"""Sharding of every parameter, and valid meshes."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, small_config
from helpers.refusals import refused
from jax.sharding import PartitionSpec as P

from t2t_flax.config import Config, Mesh, default_config, override, resolve
from t2t_flax.distributed import mesh as mesh_lib

ATTENTION = {
    "query": P("fsdp", "tensor"),
    "key": P("fsdp", "tensor"),
    "value": P("fsdp", "tensor"),
    "out": P("tensor", None, "fsdp"),
}
FFN = {("Einsum_0", "kernel"): P("fsdp", "tensor"), ("Einsum_0", "bias"): P("tensor"),
       ("Einsum_1", "kernel"): P("tensor", "fsdp"), ("Einsum_1", "bias"): P("fsdp")}  # fmt: skip


def strip(spec: P) -> P:
    parts = list(spec)
    while parts and parts[-1] is None:
        parts.pop()
    return P(*parts)


def expected(path: tuple[str, ...]) -> P:
    if path[0] == "shared_embedding":
        return P(("fsdp", "tensor"))
    if "attention" in path[1] and path[1] != "residual_attention":
        return ATTENTION[path[2]]
    if path[1] == "feed_forward":
        return FFN[path[2:]]
    assert path[1].startswith("residual") and path[2] == "norm"
    return P()


def test_parameters_and_moments_follow_the_rules():
    config = small_config()
    _, _, state, _ = model_and_state(config, devices_mesh(2, 2, 2))
    for tree in (state.params, state.opt_state[1].mu, state.opt_state[1].nu):
        leaves = jax.tree.leaves_with_path(tree)
        assert len(leaves) > 30
        for path, leaf in leaves:
            names = tuple(key.key for key in path)
            assert strip(leaf.sharding.spec) == expected(names), names
            if any(strip(leaf.sharding.spec)):
                assert len({str(s.index) for s in leaf.addressable_shards}) > 1


def test_custom_rules_change_the_sharding(tmp_path):
    """mesh.rules: vocabulary over tensor, d_ff over both axes, heads and d_model replicated."""
    config = small_config(mesh=dict(rules="vocab=tensor mlp=fsdp+tensor"))
    _, _, state, _ = model_and_state(config, devices_mesh(2, 2, 2))
    specs = {
        "shared_embedding": P("tensor"),
        "Einsum_0": P(None, ("fsdp", "tensor")),
        "Einsum_1": P(("fsdp", "tensor")),
    }
    for tree in (state.params, state.opt_state[1].mu):
        assert strip(tree["shared_embedding"]["table"].sharding.spec) == specs["shared_embedding"]
        ffn = tree["encoder_0"]["feed_forward"]
        assert all(strip(ffn[name]["kernel"].sharding.spec) == specs[name] for name in ffn)
        assert tree["encoder_0"]["self_attention"]["query"]["kernel"].sharding.is_fully_replicated
    with refused("config.model.d_ff", "config.mesh.fsdp"):
        keys = dict(model=dict(d_ff=34), mesh=dict(rules="mlp=fsdp+tensor"))
        mesh_lib.check_divisibility(small_config(**keys), devices_mesh(2, 2, 2))


@pytest.mark.parametrize("rules", ["vocabulary=fsdp", "mlp=fsdp mlp=tensor", "mlp=model", "mlp"])
def test_invalid_rules_are_refused(rules):
    with refused("config.mesh.rules", rules.split()[-1]):
        resolve(override(default_config(), {"mesh.rules": rules}))


def test_initial_parameters_do_not_depend_on_the_mesh():
    one, eight = (
        model_and_state(small_config(), devices_mesh(*shape))[2] for shape in ((1, 1, 1), (2, 2, 2))
    )
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(eight.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


def test_one_mesh_axis_takes_the_remaining_devices():
    mesh = mesh_lib.make_mesh(Mesh(data=-1, fsdp=2, tensor=2), jax.devices()[:8])
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert mesh_lib.batch_shards(mesh) == 4


def test_mesh_that_does_not_fit_names_its_key():
    with refused("config.mesh", "8 devices"):
        mesh_lib.make_mesh(Mesh(data=3), jax.devices()[:8])
    for key, value in (("num_heads", 2), ("d_ff", 34), ("pad_vocab_to_multiple", 6)):
        with refused(f"config.model.{key}"):
            mesh_lib.check_divisibility(small_config(model={key: value}), devices_mesh(1, 2, 4))
    mesh_lib.check_divisibility(dataclasses.replace(Config()), devices_mesh(1, 1, 8))
