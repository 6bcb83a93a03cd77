"""Faults that are put into the program of the devices alone are found and named; clean devices are not suspected."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, small_config
from jax.sharding import PartitionSpec

from t2t_flax.data.batching.batches import Shape
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import UserError
from t2t_flax.extensions.selftest import device, hook, probe, programs, reference, run
from t2t_flax.extensions.selftest.run import Report, run_test
from t2t_flax.models import dense
from t2t_flax.models.attention import SegmentMask, mask_array
from t2t_flax.registry import ATTENTION_KERNELS

SHAPE = Shape(length=24, rows=16, micro=3)


@pytest.fixture(scope="module", autouse=True)
def references():
    """What the CPU computes, once: no fault is in it."""
    known, compute = {}, reference.Reference.compute

    def once(self, precision):
        arrays = (x.tobytes() for x in self.probe.arrays.values())
        key = precision, repr(self.config), self.probe.vocab, *arrays
        if key not in known:
            known[key] = compute(self, precision)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference.Reference, "compute", once)
        yield


PROGRAMS = {}


@pytest.fixture
def right_programs(monkeypatch):
    """The programs of the devices, once for each config: the test's fault is not in them."""
    compile_programs = device.DeviceRun.compile

    def once(self):
        key = repr(self.config)
        if key not in PROGRAMS:
            PROGRAMS[key] = compile_programs(self)
        return PROGRAMS[key]

    monkeypatch.setattr(device.DeviceRun, "compile", once)


def report(tmp_path, mesh=(8, 1, 1), precision="float32", **groups) -> Report:
    """Of a self-test on simulated devices."""
    sizes = dict(zip(("data", "fsdp", "tensor"), mesh, strict=True))
    config = small_config(train=dict(precision=precision), mesh=sizes, **groups)
    return run_test(config, devices_mesh(*mesh), (37, 37), SHAPE, tmp_path)


def faults(tmp_path, **options) -> dict[str, list[str]]:
    """{stage: what is said}."""
    found: dict[str, list[str]] = {}
    for fault in report(tmp_path, **options).faults:
        print(fault)
        stage, _, text = fault.partition(": ")
        found.setdefault(stage, []).append(text)
    return found


def on_mesh() -> bool:
    """Whether a program for the devices of the run is traced, not the reference."""
    return not jax.sharding.get_abstract_mesh().empty


def with_shard(array: jax.Array, number: int, change) -> jax.Array:
    """The array of which the device with this number holds `change(its values)`."""
    parts = []
    for shard in array.addressable_shards:
        value = np.array(shard.data)
        parts.append(jax.device_put(change(value) if shard.device.id == number else value, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def change_parameter(params, path: tuple[str, ...], number: int, change):
    """The parameters, one of which a device holds changed."""
    here = lambda names: tuple(key.key for key in names) == path  # noqa: E731
    return jax.tree_util.tree_map_with_path(
        lambda names, x: with_shard(x, number, change) if here(names) else x, params
    )


def flipped(value: np.ndarray) -> np.ndarray:
    """The lowest bit of one element."""
    value.reshape(-1)[5:6].view(np.uint32)[:] ^= 1
    return value


@pytest.mark.parametrize("mesh, precision", [((8, 1, 1), "float32"), ((2, 2, 2), "bfloat16")])
def test_clean_devices_pass(tmp_path, mesh, precision, right_programs):
    clean = report(tmp_path, mesh, precision)
    assert not clean.faults, clean.summary
    assert {c.stage for c in clean.compared} == {"layers", "loss", "gradients", "update"}
    assert not list(tmp_path.iterdir())
    clean.raise_if_faulty()


def test_rows_as_long_as_there_are_heads_are_no_fault(tmp_path, monkeypatch):
    """Weights of attention, [B, heads, L, L], are not outputs [B, L, ...]."""
    monkeypatch.setattr(probe, "_TOKENS", 3 * 8 * 8)
    clean = report(tmp_path, (8, 1, 1), model=dict(num_heads=8))
    assert "outputs of 8 tokens a row" in clean.summary and not clean.faults, clean.summary


def test_positions_that_a_table_does_not_have_are_no_fault(tmp_path):
    clean = report(tmp_path, (2, 1, 1), model=dict(position="learned", max_positions=12), data=dict(max_length=12))
    assert "outputs of 12 tokens a row" in clean.summary and not clean.faults, clean.summary


QUERY = ("decoder_0", "self_attention", "query", "kernel")


def test_a_flipped_bit_in_the_copy_of_a_device(tmp_path, monkeypatch, right_programs):
    place = device.DeviceRun.place

    def faulty(self, state):
        state = place(self, state)
        return state.replace(params=change_parameter(state.params, QUERY, 3, flipped))

    monkeypatch.setattr(device.DeviceRun, "place", faulty)
    broken = report(tmp_path)
    assert (
        "parameters: device 3's copy of decoder_0.self_attention.query.kernel differs from device 0's at 1 of 256"
        in (broken.faults[0])
    )
    with pytest.raises(UserError, match="do not train here: .*device 3's copy"):
        broken.raise_if_faulty()


def test_a_flipped_bit_after_the_update(tmp_path, monkeypatch, right_programs):
    compile_programs = device.DeviceRun.compile

    def faulty(self):
        programs = compile_programs(self)

        def update(state, batch):
            state, metrics = programs.update(state, batch)
            return state.replace(params=change_parameter(state.params, QUERY, 6, flipped)), metrics

        return programs._replace(update=update)

    monkeypatch.setattr(device.DeviceRun, "compile", faulty)
    (text,) = faults(tmp_path)["copies"]
    assert text.startswith(
        "device 6's copy of decoder_0.self_attention.query.kernel differs from device 0's at 1 of 256"
    )


def test_a_wrong_shard_on_a_device(tmp_path, monkeypatch, right_programs):
    put = device._put

    def faulty(x, sharding):
        array = put(x, sharding)
        if array.shape != (40, 16) or array.is_fully_replicated:  # the table of embeddings
            return array
        other = next(np.array(s.data) for s in array.addressable_shards if s.device.id == 1)
        return with_shard(array, 4, lambda value: other)

    monkeypatch.setattr(device, "_put", faulty)
    text = faults(tmp_path, mesh=(1, 8, 1))["parameters"][0]
    assert "device 4's shard [20:25, 0:16] of shared_embedding.table" in text and "it is the shard of device 1" in text


def test_gradients_that_are_not_summed_over_the_devices(tmp_path, monkeypatch):
    def own(x_SxN, dtype, sharding=None):
        alone = jax.shard_map(
            lambda x: x[0], in_specs=PartitionSpec(("data", "fsdp")), out_specs=PartitionSpec(), check_vma=False
        )
        return alone(x_SxN)

    monkeypatch.setattr(mesh_lib, "sum_over_shards", own)
    found = faults(tmp_path)
    assert "some gradients are not summed over the devices" in found["programs"][0]
    wrong, *why = found["gradients"]
    assert "is wrong on every device" in wrong
    assert any("on device 5 is the sum of the rows of shard 5 of the batch alone" in text for text in why)
    assert "copy of" in found["copies"][0]
    assert "layers" not in found and "parameters" not in found


def test_a_microbatch_that_is_not_accumulated(tmp_path, monkeypatch):
    """As in openxla/xla#49143: the gradient of the table loses one."""
    scan = jax.lax.scan

    def faulty(function, start, parts, **options):
        if (
            not isinstance(start, tuple)
            or not isinstance(parts, tuple)
            or len(parts[1]) != SHAPE.micro
            or not on_mesh()
        ):
            return scan(function, start, parts, **options)
        (grads, sums), rest = scan(function, start, parts, **options)
        (without, _), _ = scan(function, start, jax.tree.map(lambda x: x[1:], parts), **options)
        return (grads | {"shared_embedding": without["shared_embedding"]}, sums), rest

    monkeypatch.setattr(jax.lax, "scan", faulty)
    wrong, why = faults(tmp_path, mesh=(4, 2, 1))["gradients"]
    assert wrong.startswith("the gradient of shared_embedding.table is wrong on every device")
    assert why.endswith("lacks microbatch 1 of 3: it is not accumulated")


@pytest.mark.parametrize("mesh", [(8, 1, 1), (1, 2, 4)])
def test_a_product_in_another_precision(tmp_path, monkeypatch, mesh):
    call = dense.Einsum.__call__
    wrong = "decoder_0/feed_forward/Einsum_1"

    def faulty(self, x):
        if on_mesh() and "/".join(self.path) == wrong:
            x = x.astype(jnp.bfloat16).astype(jnp.float32)
        return call(self, x)

    monkeypatch.setattr(dense.Einsum, "__call__", faulty)
    (text,) = faults(tmp_path, mesh=mesh)["layers"]
    assert text.startswith(f"the output of {wrong.replace('/', '.')} is wrong on every device")
    assert "and float32 explains" in text


def test_products_in_bfloat16_where_float32_was_asked_for(tmp_path, monkeypatch):
    product = jnp.einsum

    def faulty(equation, *operands, **options):
        if on_mesh() and equation == "...d,dnh->...nh":
            return product(equation, *(x.astype(jnp.bfloat16) for x in operands), preferred_element_type=jnp.float32)
        return product(equation, *operands, **options)

    monkeypatch.setattr(dense.jnp, "einsum", faulty)
    found = faults(tmp_path)
    assert "matrix products are in bfloat16, where float32 was asked for" in found["programs"][0]
    assert found["layers"][0].startswith("the output of encoder_0.self_attention.key is wrong on every device")


class Kernel:
    """A fused kernel as of `ATTENTION_KERNELS`, of simulated devices."""

    PLATFORM = "cpu"

    def __init__(self, segments: bool):
        self._segments = segments

    def takes(self, q, k, v, mask) -> bool:
        return isinstance(mask, SegmentMask)

    def attend(self, q, k, v, mask, *, scaled: bool):
        if not self._segments:
            ones = (jnp.minimum(x, 1) for x in (mask.query_segments, mask.key_segments))
            mask = dataclasses.replace(mask, **dict(zip(("query_segments", "key_segments"), ones, strict=True)))
        return jax.nn.dot_product_attention(q, k, v, mask=mask_array(mask), scale=None if scaled else 1.0)


@pytest.mark.parametrize("segments", [True, False])
def test_a_kernel_that_ignores_segments(tmp_path, monkeypatch, segments):
    monkeypatch.setitem(ATTENTION_KERNELS, "simulated", "simulated")
    load = ATTENTION_KERNELS.load
    monkeypatch.setattr(
        ATTENTION_KERNELS, "load", lambda n: Kernel(segments) if n == "simulated" else load(n), raising=False
    )
    options = dict(mesh=(4, 1, 2), precision="bfloat16", model=dict(attention_kernel="simulated"))
    found = faults(tmp_path, **options)
    if segments:
        assert not found
    else:
        text = found["layers"][0]
        assert text.startswith("the output of encoder_0.self_attention.attend is wrong on every device")


def test_a_device_that_computes_wrong(tmp_path, monkeypatch, right_programs):
    """One layer of one device."""
    compile_programs = device.DeviceRun.compile

    def compile_faulty(self):
        programs = compile_programs(self)

        def layers(params, batch):
            seen = programs.layers(params, batch)
            name = "decoder_0.cross_attention.value"
            return seen | {name: with_shard(seen[name], 2, lambda value: value * np.float32(1.001))}

        return programs._replace(layers=layers)

    monkeypatch.setattr(device.DeviceRun, "compile", compile_faulty)
    (text,) = faults(tmp_path)["layers"]
    assert text.startswith(
        "the output of decoder_0.cross_attention.value is wrong on device 2: its relative error is 0.001"
    )


def test_a_wrong_optimizer(tmp_path, monkeypatch):
    recording = device.recording

    def faulty(tx):
        made = recording(tx)

        def update(grads, state, params=None):
            updates, state = made.update(grads, state, params)
            updates["decoder_0"] = jax.tree.map(lambda u: -u, updates["decoder_0"])
            return updates, state

        return made._replace(update=update)

    monkeypatch.setattr(device, "recording", faulty)
    text = faults(tmp_path, optimizer=dict(lr_scale=2.0))["update"][0]
    assert text.startswith("after the update decoder_0.")


def test_a_checkpoint_that_is_not_restored_as_it_was_saved(tmp_path, monkeypatch, right_programs):
    round_trip = device.DeviceRun.round_trip

    def faulty(self, state, folder, group):
        again = round_trip(self, state, folder, group)
        return again.replace(params=change_parameter(again.params, QUERY, 7, flipped))

    monkeypatch.setattr(device.DeviceRun, "round_trip", faulty)
    (text,) = faults(tmp_path)["checkpoint"]
    assert text == "decoder_0.self_attention.query.kernel on device 7 is not restored as it was saved"


@pytest.mark.smoke
def test_without_a_cpu_it_says_so(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", functools.partial(_no_backend))
    with pytest.raises(UserError, match="JAX_PLATFORMS leaves out: add cpu"):
        reference.cpu_device()


@pytest.mark.smoke
def test_platforms_without_a_cpu_are_refused_before_data_are_prepared(monkeypatch):
    config = small_config()
    for platforms, refused in (("", False), ("cuda,cpu", False), ("cpu", False), ("cuda", True), ("tpu", True)):
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        hook.check_installed(small_config(selftest=dict(at_start="never")))
        if refused:
            with pytest.raises(UserError, match=f"set JAX_PLATFORMS={platforms},cpu, or train"):
                hook.check_installed(config)
        else:
            hook.check_installed(config)


def test_a_process_makes_each_test_once(tmp_path, monkeypatch):
    """Vectorized trials start one after the other in a process, and differ in rates and seeds."""
    made, group = [], ProcessGroup()
    monkeypatch.setattr(hook, "_passed", set())
    report = Report([], [], "", [], 0.0)
    monkeypatch.setattr(run, "run_test", lambda config, *_: (made.append(config.train.precision), report)[1])
    for keys in (
        dict(model=dict(dropout=0.1)),
        dict(model=dict(dropout=0.3), seed=dict(init=3)),
        dict(train=dict(precision="bfloat16")),
        dict(loss=dict(logits_chunk_size=16)),
    ):
        tokenizers = SimpleNamespace(vocab_sizes=(37, 37))
        setup = SimpleNamespace(
            config=small_config(**keys),
            mesh=devices_mesh(2),
            corpus=SimpleNamespace(tokenizers=tokenizers),
            batches=SimpleNamespace(shapes=[SHAPE]),
        )
        hook.SelfTestHook(tmp_path, group).on_start(setup, None)
    assert made == ["auto", "bfloat16", "auto"]


@pytest.mark.smoke
def test_a_kernel_that_the_compiler_divides_over_devices_must_be_in_its_program():
    """It is named in the compiled program alone."""
    asked = "stablehlo.custom_call @CustomSPMDPartitioning(%0) : tensor<4xbf16>"
    there = '%c.1 = bf16[4]{0} custom-call(%x), custom_call_target="__cudnn$fmhaSoftmax"'
    check = functools.partial(
        programs.check_programs,
        asked, precision="bfloat16", platform="gpu", shards=1, exchanged=0, only_data=True, in_optimizer=0,
    )  # fmt: skip
    assert check(there, kernel="cudnn").summary.endswith("attention by __cudnn$fmhaSoftmax")
    assert not check(there, kernel="cudnn").faults and not check("", kernel="einsum").faults
    (fault,) = check("", kernel="cudnn").faults
    assert fault == "the kernel cudnn of attention was asked for and is not in the compiled program"


def _no_backend(*, backend):
    raise RuntimeError(f"unknown backend {backend}")
