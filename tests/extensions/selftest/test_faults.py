"""Faults that are put into the program of the devices alone are found and named.

Clean devices are not suspected.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, small_config
from helpers.refusals import assert_names, refused
from jax.sharding import PartitionSpec

from t2t_flax.data.batching.rows import Shape
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.selftest import device, probe, programs, reference
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


def report(mesh=(8, 1, 1), precision="float32", zero1=False, **groups) -> Report:
    """Run the self-test on simulated devices."""
    sizes = dict(zip(("data", "fsdp", "tensor"), mesh, strict=True))
    sizes |= dict(fsdp_mode="zero1") if zero1 else {}
    train = groups.pop("train", {}) | dict(precision=precision)
    config = small_config(train=train, mesh=sizes, **groups)
    return run_test(config, devices_mesh(*mesh), (37, 37), SHAPE)


def faults(**options) -> dict[str, list[str]]:
    """{stage: what is said}."""
    found: dict[str, list[str]] = {}
    for fault in report(**options).faults:
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
        parts.append(
            jax.device_put(change(value) if shard.device.id == number else value, shard.device)
        )
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


CLEAN = {
    "bfloat16 on three axes, a table of 12 positions": dict(
        mesh=(2, 2, 2),
        precision="bfloat16",
        model=dict(position="learned", max_positions=12),
        data=dict(max_length=12),
    ),
    "TF32 with ZeRO-1": dict(
        mesh=(2, 2, 2),
        precision="tf32",
        zero1=True,
        model=dict(
            norm_placement="pre",
            tie_embeddings="decoder",
            num_encoder_layers=1,
            num_decoder_layers=1,
        ),
        loss=dict(logits_chunk_size=64),
        optimizer=dict(weight_decay=0.01, ema_decay=0.999),
    ),
    "products of Muon in float32": dict(
        mesh=(1, 1, 8),
        precision="bfloat16",
        model=dict(num_heads=8, d_model=32, d_ff=64, norm_placement="pre"),
        optimizer=dict(name="muon", schedule="inverse_sqrt", ema_decay=0.999),
        train=dict(remat="dots"),
    ),
    "rows as long as there are heads": dict(
        mesh=(8, 1, 1), model=dict(num_heads=8), tokens=3 * 8 * 8
    ),
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_devices_pass(monkeypatch, name):
    options = CLEAN[name].copy()
    monkeypatch.setattr(probe, "_TOKENS", options.pop("tokens", probe._TOKENS))
    clean = report(**options)
    assert not clean.faults, clean.summary
    assert {c.stage for c in clean.compared} == {"layers", "loss", "gradients", "update"}
    clean.raise_if_faulty()


QUERY = ("decoder_0", "self_attention", "query", "kernel")


def test_a_flipped_bit_in_the_copy_of_a_device(monkeypatch, right_programs):
    place = device.DeviceRun.place

    def faulty(self, state):
        state = place(self, state)
        return state.replace(params=change_parameter(state.params, QUERY, 3, flipped))

    monkeypatch.setattr(device.DeviceRun, "place", faulty)
    broken = report()
    assert_names(
        broken.faults[0],
        "parameters:",
        "device 3",
        "decoder_0.self_attention.query.kernel",
        "device 0",
        "1 of",
    )
    with refused("device 3", "decoder_0.self_attention.query.kernel"):
        broken.raise_if_faulty()


def test_a_flipped_bit_after_the_update(monkeypatch, right_programs):
    compile_programs = device.DeviceRun.compile

    def faulty(self):
        programs = compile_programs(self)

        def update(state, batch):
            state, metrics = programs.update(state, batch)
            return state.replace(params=change_parameter(state.params, QUERY, 6, flipped)), metrics

        return programs._replace(update=update)

    monkeypatch.setattr(device.DeviceRun, "compile", faulty)
    (text,) = faults()["copies"]
    assert_names(text, "device 6", "decoder_0.self_attention.query.kernel", "device 0", "1 of")


def test_a_wrong_shard_on_a_device(monkeypatch, right_programs):
    put = device._put

    def faulty(x, sharding):
        array = put(x, sharding)
        if array.shape != (40, 16) or array.is_fully_replicated:  # the table of embeddings
            return array
        other = next(np.array(s.data) for s in array.addressable_shards if s.device.id == 1)
        return with_shard(array, 4, lambda value: other)

    monkeypatch.setattr(device, "_put", faulty)
    text = faults(mesh=(1, 8, 1))["parameters"][0]
    assert_names(text, "device 4", "[20:25, 0:16]", "shared_embedding.table", "device 1")


def test_gradients_that_are_not_summed_over_the_devices(monkeypatch):
    def own(x_SxN, dtype, sharding=None):
        alone = jax.shard_map(
            lambda x: x[0],
            in_specs=PartitionSpec(("data", "fsdp")),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        return alone(x_SxN)

    monkeypatch.setattr(mesh_lib, "sum_over_shards", own)
    found = faults()
    assert found.keys() >= {"programs", "gradients", "copies"} and not found.keys() & {
        "layers",
        "parameters",
    }
    assert_names(found["programs"][0], "8 shards")
    assert_names(found["gradients"][0], "every device")


def test_a_microbatch_that_is_not_accumulated(monkeypatch):
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
        (sums, grads), rest = scan(function, start, parts, **options)
        (_, without), _ = scan(function, start, jax.tree.map(lambda x: x[1:], parts), **options)
        return (sums, grads | {"shared_embedding": without["shared_embedding"]}), rest

    monkeypatch.setattr(jax.lax, "scan", faulty)
    (text,) = faults(mesh=(4, 2, 1))["gradients"]
    assert_names(text, "shared_embedding.table", "every device")


def test_a_product_in_another_precision(monkeypatch):
    call = dense.Einsum.__call__
    wrong = "decoder_0/feed_forward/Einsum_1"

    def faulty(self, x):
        if on_mesh() and "/".join(self.path) == wrong:
            x = x.astype(jnp.bfloat16).astype(jnp.float32)
        return call(self, x)

    monkeypatch.setattr(dense.Einsum, "__call__", faulty)
    (text,) = faults(mesh=(1, 2, 4))["layers"]
    assert_names(text, wrong.replace("/", "."), "every device", "float32")


def test_products_in_bfloat16_where_float32_was_asked_for(monkeypatch):
    product = jnp.einsum

    def faulty(equation, *operands, **options):
        if on_mesh() and equation == "...d,dnh->...nh":
            return product(
                equation,
                *(x.astype(jnp.bfloat16) for x in operands),
                preferred_element_type=jnp.float32,
            )
        return product(equation, *operands, **options)

    monkeypatch.setattr(dense.jnp, "einsum", faulty)
    found = faults()
    assert_names(found["programs"][0], "bfloat16", "float32")
    assert_names(found["layers"][0], "encoder_0.self_attention.key", "every device")


class Kernel:
    """A fused kernel as of `ATTENTION_KERNELS`, of simulated devices."""

    PLATFORM = "cpu"

    def __init__(self, segments: bool):
        self._segments = segments

    def unavailable(self) -> str:
        return ""

    def takes(self, q, k, v, mask) -> bool:
        return isinstance(mask, SegmentMask)

    def attend(self, q, k, v, mask, *, scaled: bool):
        if not self._segments:
            ones = (jnp.minimum(x, 1) for x in (mask.query_segments, mask.key_segments))
            mask = dataclasses.replace(
                mask, **dict(zip(("query_segments", "key_segments"), ones, strict=True))
            )
        return jax.nn.dot_product_attention(
            q, k, v, mask=mask_array(mask), scale=None if scaled else 1.0
        )


@pytest.mark.parametrize("segments", [True, False])
def test_a_kernel_that_ignores_segments(monkeypatch, segments):
    monkeypatch.setitem(ATTENTION_KERNELS, "simulated", "simulated")
    load = ATTENTION_KERNELS.load
    monkeypatch.setattr(
        ATTENTION_KERNELS,
        "load",
        lambda n: Kernel(segments) if n == "simulated" else load(n),
        raising=False,
    )
    options = dict(mesh=(4, 1, 2), precision="bfloat16", model=dict(attention_kernel="simulated"))
    found = faults(**options)
    if segments:
        assert not found
    else:
        assert_names(found["layers"][0], "encoder_0.self_attention.attend", "every device")


def test_a_device_that_computes_wrong(monkeypatch, right_programs):
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
    (text,) = faults()["layers"]
    assert_names(text, "decoder_0.cross_attention.value", "device 2", "0.001")


def test_a_wrong_optimizer(monkeypatch):
    recording = device.recording

    def faulty(tx):
        made = recording(tx)

        def update(grads, state, params=None):
            updates, state = made.update(grads, state, params)
            updates["decoder_0"] = jax.tree.map(lambda u: -u, updates["decoder_0"])
            return updates, state

        return made._replace(update=update)

    monkeypatch.setattr(device, "recording", faulty)
    text = faults(optimizer=dict(lr_scale=2.0))["update"][0]
    assert_names(text, "decoder_0.")


@pytest.mark.smoke
def test_without_a_cpu_it_says_so(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", functools.partial(_no_backend))
    with refused("JAX_PLATFORMS"):
        reference.cpu_device()


@pytest.mark.smoke
def test_a_kernel_that_the_compiler_divides_over_devices_must_be_in_its_program():
    """It is named in the compiled program alone."""
    asked = "stablehlo.custom_call @CustomSPMDPartitioning(%0) : tensor<4xbf16>"
    there = '%c.1 = bf16[4]{0} custom-call(%x), custom_call_target="__cudnn$fmhaSoftmax"'
    check = functools.partial(
        programs.check_programs,
        asked, precision="bfloat16", platform="gpu", shards=1, exchanged=0, only_data=True, in_optimizer=0,
    )  # fmt: skip
    assert_names(check(there, kernel="cudnn").summary, "__cudnn$fmhaSoftmax")
    assert not check(there, kernel="cudnn").faults and not check("", kernel="einsum").faults
    (fault,) = check("", kernel="cudnn").faults
    assert_names(fault, "cudnn")


def _no_backend(*, backend):
    raise RuntimeError(f"unknown backend {backend}")
