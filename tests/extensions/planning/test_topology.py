"""Topology names: chips, devices, shapes, slices and hosts, and errors for unknown names."""

import pytest
from helpers.refusals import refused

from t2t_flax.extensions.planning.chips import GPUS, target_config
from t2t_flax.extensions.planning.topology import _SHAPES, _sizes, parse, parse_all


@pytest.mark.parametrize(
    ("name", "chips", "devices", "shape", "slices"),
    [
        ("v5e-16", 16, 16, (4, 4), 1),
        ("v5e-256", 256, 256, (16, 16), 1),
        ("v5litepod-16", 16, 16, (4, 4), 1),
        ("v6e-8", 8, 8, (2, 4), 1),
        ("v5p-128", 64, 64, (4, 4, 4), 1),  # the number counts TensorCores, two to a chip
        ("v5p-8", 4, 4, (2, 2, 1), 1),
        ("v4-32", 16, 16, (2, 2, 4), 1),
        ("tpu7x-128", 64, 128, (4, 4, 4), 1),  # a device is half a chip
        ("tpu7x:2x2x1", 4, 8, (2, 2, 1), 1),
        ("gb200-72", 72, 72, (72,), 1),  # NVLink joins a rack
        ("gb200-144", 144, 144, (72,), 2),
        ("b300-16", 16, 16, (8,), 2),
        ("v3-8", 4, 8, (2, 2), 1),  # and on v3 a JAX device is a core
        ("v3-2048", 1024, 2048, (32, 32), 1),
        ("v5p:4x4x8", 128, 128, (4, 4, 8), 1),  # a shape counts chips
        ("v5e:2x2", 4, 4, (2, 2), 1),
        ("2xv5e-256", 512, 512, (16, 16), 2),
        ("4xv5p:4x4x4", 256, 256, (4, 4, 4), 4),
        ("cpu:8", 8, 8, (8,), 1),
        ("2xcpu:4", 8, 8, (4,), 2),
        ("h100-8", 8, 8, (8,), 1),
        ("h100-16", 16, 16, (8,), 2),  # hosts of 8, joined by the network
        ("2xh100-8", 16, 16, (8,), 2),
        ("b200-4", 4, 4, (4,), 1),
    ],
)
def test_topology_names_give_device_shapes(name, chips, devices, shape, slices):
    topology = parse(name)
    assert (topology.chips, topology.devices, topology.shape, topology.slices) == (
        chips,
        devices,
        shape,
        slices,
    )
    assert str(chips if topology.chip else devices) in topology.describe()


def test_vendor_sizes_and_shapes_agree():
    for name in (f"{family}-{size}" for family in _SHAPES for size in _sizes(family)):
        family, _, size = name.partition("-")
        topology = parse(name)
        assert topology.chips * (2 if family in ("v3", "v4", "v5p", "tpu7x") else 1) == int(size)
        assert parse(f"{family}:{'x'.join(map(str, topology.shape))}").chips == topology.chips


def test_several_names_by_comma_or_repetition():
    assert [t.name for t in parse_all(["v5e-16,v5p:4x4x4", "cpu:2"])] == [
        "v5e-16",
        "v5p:4x4x4",
        "cpu:2",
    ]


WRONG = "v5x-256 pod v5e-512 v5e:32x32 v5p:16x16x32 v5e-20 v5p-12 v5e:4x4x4 v5p:4x4 v5e:3x4 v5e:big v5e:0x4 0xv5e-16 cpu:0 "


@pytest.mark.parametrize("name", [*WRONG.split(), "h100-12", "h100-0", "b900-8"])
def test_unknown_machines_are_refused(name):
    with refused("--topology", name):
        parse(name)


@pytest.mark.parametrize("name", GPUS)
def test_gpu_target_configs_match_the_chip_table(name):
    chip = GPUS[name]
    text = target_config(chip)
    assert (
        f"device_memory_size: {int(chip.hbm_bytes)}\n" in text
        and f"core_count: {chip.target.cores} " in text
    )
    assert f'device_description_str: "{chip.kind}' in text and text.count("{") == text.count("}")
