"""Names of machines: what the vendor's numbers count, shapes, slices, and what to say of a name that is none."""

import pytest

from t2t_flax.errors import UserError
from t2t_flax.planning.topology import parse, parse_all, vendor_names


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
        ("v3-8", 4, 8, (2, 2), 1),  # and on v3 a JAX device is a core
        ("v3-2048", 1024, 2048, (32, 32), 1),
        ("v5p:4x4x8", 128, 128, (4, 4, 8), 1),  # a shape counts chips
        ("v5e:2x2", 4, 4, (2, 2), 1),
        ("2xv5e-256", 512, 512, (16, 16), 2),
        ("4xv5p:4x4x4", 256, 256, (4, 4, 4), 4),
        ("cpu:8", 8, 8, (8,), 1),
        ("2xcpu:4", 8, 8, (4,), 2),
        ("gpu:h100x8", 8, 8, (8,), 1),
        ("gpu:a100x16", 16, 16, (8,), 2),  # hosts of 8, which the network joins
        ("gpu:h200", 1, 1, (1,), 1),
    ],
)
def test_names_and_shapes(name, chips, devices, shape, slices):
    found = parse(name)
    assert (found.chips, found.devices, found.shape, found.slices) == (chips, devices, shape, slices)
    if found.platform != "cpu":
        assert f"{chips} chips" in found.describe()


def test_every_vendor_name_is_its_own_shape():
    for name in vendor_names():
        family, _, size = name.partition("-")
        found = parse(name)
        assert found.chips * (2 if family in ("v3", "v4", "v5p") else 1) == int(size)
        assert parse(f"{family}:{'x'.join(map(str, found.shape))}").chips == found.chips


def test_several_by_comma_or_repetition():
    assert [t.name for t in parse_all(["v5e-16,v5p:4x4x4", "cpu:2"])] == ["v5e-16", "v5p:4x4x4", "cpu:2"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5x-256", "Did you mean 'v5"),
        ("pod", "no such machine"),
        ("v5e-512", "one v5e slice ends at 256 chips. Several slices are written 2xv5e-256"),
        ("v5e:32x32", "1,024 chips, but one v5e slice ends at 256"),
        ("v5p:16x16x32", "8,192 chips, but one v5p slice ends at 6,144"),
        ("v5e-20", "no known v5e slice has 20 chips; the nearest is v5e-16"),
        ("v5p-12", "no known v5p slice has 12 TensorCores"),
        ("v5e:4x4x4", "a v5e slice has 2 axes"),
        ("v5p:4x4", "a v5p slice has 3 axes"),
        ("v5e:3x4", "even"),
        ("v5e:big", "'big' is not a shape"),
        ("0xv5e-16", "0 slices"),
        ("cpu:0", "no such machine"),
        ("gpu:h100x12", "hosts of 8"),
        ("gpu:b900x8", "no such machine"),
    ],
)
def test_impossible_names_say_what_is_possible(name, message):
    with pytest.raises(UserError) as error:
        parse(name)
    assert message in str(error.value) and name in str(error.value)
