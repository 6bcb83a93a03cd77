"""Rooflines computed by hand: three terms, overlap, links and slices."""

import itertools

import pytest

from t2t_flax.extensions.planning.collectives import Collective, DeviceLayout
from t2t_flax.extensions.planning.plan import Roofline, collective_seconds, roofline, sent_bytes
from t2t_flax.extensions.planning.topology import parse


def row(kind="all-reduce", devices=4, slices=1, links=2, hops=0, runs=1, size=8e9, overlaps=False):
    return dict(
        kind=kind,
        devices=devices,
        slices=slices,
        links=links,
        hops=hops,
        runs=runs,
        bytes=size,
        overlaps=overlaps,
    )


def test_sent_bytes_are_the_algorithmic_minimum():
    assert sent_bytes(row()) == (2 * 3 / 4 * 8e9, 0)
    assert sent_bytes(row("all-gather")) == (3 / 4 * 8e9, 0)
    assert sent_bytes(row("reduce-scatter")) == (3 / 4 * 8e9, 0)
    assert sent_bytes(row("collective-permute", devices=2)) == (8e9, 0)
    # Two slices of 4: within a slice as before; each device also sends its fourth once to the other
    # slice.
    assert sent_bytes(row(slices=2)) == (12e9, 2 * 1 / 2 * 2e9)
    assert sent_bytes(row(devices=1, slices=2)) == (0, 8e9)


def test_seconds_of_a_collective():
    v5e = parse("v5e-4")
    assert collective_seconds(v5e, row()) == pytest.approx((12e9 / (2 * 50e9), 0))
    assert collective_seconds(v5e, row(hops=3, runs=2))[0] == pytest.approx(0.12 + 2 * 3 * 2e-6)
    assert collective_seconds(parse("2xv5e-4"), row(slices=2))[1] == pytest.approx(2e9 / 3.125e9)
    # A v3 device is half a chip, and has half its network.
    assert collective_seconds(parse("2xv3-8"), row(slices=2))[1] == pytest.approx(
        2e9 / (3.125e9 / 2)
    )


def test_three_terms_of_a_step():
    line = roofline(parse("v5e-4"), 197e12, 819e9 / 2, [row(), row(overlaps=True)])
    assert line == Roofline(
        pytest.approx(1.0),
        pytest.approx(0.5),
        pytest.approx(0.24),
        pytest.approx(0.0),
        pytest.approx(0.12),
    )
    assert line.seconds == pytest.approx(1.12) and line.bottleneck == "compute"
    assert roofline(parse("v3-8"), 61.5e12, 450e9, []).seconds == pytest.approx(1.0)
    assert roofline(parse("cpu:8"), 1.0, 1.0, []) is None


def test_overlapping_collective_longer_than_work_is_the_bottleneck():
    line = Roofline(compute=1.0, memory=2.0, ici=3.0, dcn=1.0, overlapping=3.5)
    assert (line.seconds, line.bottleneck) == (3.5 + 0.5, "interconnect")


def grid(name: str) -> DeviceLayout:
    """All chips of a slice, in the order of their coordinates."""
    topology = parse(name)
    chips = tuple(itertools.product(*map(range, topology.shape)))
    return DeviceLayout((0,) * len(chips), chips, topology, {"data": len(chips)})


def test_links_of_a_group_of_devices():
    small, pod = grid("v5e-16"), grid("v5e-256")
    assert small.links(tuple(range(16))) == (2, 6)  # two open axes of 4
    assert small.links((0, 1, 2, 3)) == (1, 3)  # one of them
    assert pod.links(tuple(range(256))) == (4, 16)  # both closed to rings
    assert pod.links(tuple(range(16))) == (2, 8)
    assert pod.links((0, 1, 2, 3)) == (1, 3)  # a part of a ring is a line
    assert grid("v5p:4x4x4").links(tuple(range(64))) == (6, 6)  # a cube of v5p closes
    assert grid("v5p:2x2x4").links(tuple(range(16))) == (3, 5)


def test_summary_groups_collectives_and_sums_bytes():
    topology = parse("2xv5e:2x2")
    layout = DeviceLayout(
        (0,) * 4 + (1,) * 4, ((0, 0), (0, 1), (1, 0), (1, 1)) * 2, topology, {"data": 4, "fsdp": 2}
    )
    everyone, near = tuple(range(8)), (0, 1, 2, 3)
    rows = layout.summary(
        [
            Collective("all-reduce", 100, near),
            Collective("all-reduce", 50, near, times=3),
            Collective("all-reduce", 100, near, overlaps=True),
            Collective("all-reduce", 25, (0,), across_slices=True),
            Collective("all-reduce", 80, everyone),
        ]
    )
    assert [r["axes"] for r in rows] == ["data fsdp", "data fsdp", "data", "data fsdp"]
    assert layout.axes((0, 1)) == "fsdp" and layout.axes((0, 2, 4, 6)) == "data"
    assert [(r["devices"], r["slices"], r["runs"], r["bytes"], r["overlaps"]) for r in rows] == [
        (4, 1, 4, 250, False),
        (4, 1, 1, 100, True),
        (1, 2, 1, 25, False),
        (4, 2, 1, 80, False),
    ]
    assert [sent_bytes(r) for r in rows[2:]] == [(0, 25), (2 * 3 / 4 * 80, 2 * 1 / 2 * 20)]


def test_gpus_of_hosts_send_over_nvlink_and_network():
    h100 = parse("2xh100-8")
    near, far = collective_seconds(h100, row(devices=8, slices=2, links=1, size=8e9))
    assert near == pytest.approx(2 * 7 / 8 * 8e9 / 450e9) and far == pytest.approx(1e9 / 50e9)
    assert DeviceLayout((0,) * 8 + (1,) * 8, ((0,),) * 16, h100, {"data": 16}).links(
        tuple(range(16))
    ) == (1, 1)
