"""Rooflines by hand: three terms, what overlaps, links and slices."""

import pytest

from t2t_flax.planning.collectives import Collective
from t2t_flax.planning.places import Places
from t2t_flax.planning.roofline import Roofline, collective_seconds, roofline, sent_bytes
from t2t_flax.planning.topology import parse


def row(kind="all-reduce", devices=4, slices=1, links=2, hops=0, runs=1, size=8e9, overlaps=False):
    return dict(
        kind=kind, devices=devices, slices=slices, links=links, hops=hops, runs=runs, bytes=size, overlaps=overlaps
    )


def test_what_a_device_must_send():
    assert sent_bytes(row()) == (2 * 3 / 4 * 8e9, 0)
    assert sent_bytes(row("all-gather")) == (3 / 4 * 8e9, 0)
    assert sent_bytes(row("reduce-scatter")) == (3 / 4 * 8e9, 0)
    assert sent_bytes(row("collective-permute", devices=2)) == (8e9, 0)
    # Two slices of 4: within the slice as before, and of its fourth each device sends once its size to the other.
    assert sent_bytes(row(slices=2)) == (12e9, 2 * 1 / 2 * 2e9)
    assert sent_bytes(row(devices=1, slices=2)) == (0, 8e9)


def test_seconds_of_a_collective():
    v5e = parse("v5e-4")
    assert collective_seconds(v5e, row()) == pytest.approx((12e9 / (2 * 50e9), 0))
    assert collective_seconds(v5e, row(hops=3, runs=2))[0] == pytest.approx(0.12 + 2 * 3 * 2e-6)
    assert collective_seconds(parse("2xv5e-4"), row(slices=2))[1] == pytest.approx(2e9 / 3.125e9)
    # A v3 device is half a chip, and has half its network.
    assert collective_seconds(parse("2xv3-8"), row(slices=2))[1] == pytest.approx(2e9 / (3.125e9 / 2))


def test_three_terms_of_a_step():
    line = roofline(parse("v5e-4"), 197e12, 819e9 / 2, [row(), row(overlaps=True)])
    assert line == Roofline(
        pytest.approx(1.0), pytest.approx(0.5), pytest.approx(0.24), pytest.approx(0.0), pytest.approx(0.12)
    )
    assert line.seconds == pytest.approx(1.12) and line.binds == "compute"
    assert roofline(parse("v3-8"), 61.5e12, 450e9, []).seconds == pytest.approx(1.0)
    assert roofline(parse("cpu:8"), 1.0, 1.0, []) is None


def test_a_collective_longer_than_the_work_beside_it_binds():
    line = Roofline(compute=1.0, memory=2.0, ici=3.0, dcn=1.0, overlapping=3.5)
    assert (line.seconds, line.binds) == (3.5 + 0.5, "interconnect")


def grid(name: str) -> Places:
    """All places of a slice, in the order of their coordinates."""
    topology = parse(name)
    places = [()]
    for size in topology.shape:
        places = [(*place, i) for place in places for i in range(size)]
    return Places((0,) * len(places), tuple(places), topology)


def test_links_that_a_group_can_use():
    small, pod = grid("v5e-16"), grid("v5e-256")
    assert small.links(tuple(range(16))) == (2, 6)  # two open axes of 4
    assert small.links((0, 1, 2, 3)) == (1, 3)  # one of them
    assert pod.links(tuple(range(256))) == (4, 16)  # both closed to rings
    assert pod.links(tuple(range(16))) == (2, 8)
    assert pod.links((0, 1, 2, 3)) == (1, 3)  # a part of a ring is a line
    assert grid("v5p:4x4x4").links(tuple(range(64))) == (6, 6)  # a cube of v5p closes
    assert grid("v5p:2x2x4").links(tuple(range(16))) == (3, 5)


def test_a_summary_keeps_what_differs_and_adds_up_what_does_not():
    topology = parse("2xv5e:2x2")
    places = Places((0,) * 4 + (1,) * 4, ((0, 0), (0, 1), (1, 0), (1, 1)) * 2, topology)
    everyone, near = tuple(range(8)), (0, 1, 2, 3)
    rows = places.summary(
        [
            Collective("all-reduce", 100, near),
            Collective("all-reduce", 50, near, times=3),
            Collective("all-reduce", 100, near, overlaps=True),
            Collective("all-reduce", 25, (0,), across=True),
            Collective("all-reduce", 80, everyone),
        ]
    )
    assert [(r["devices"], r["slices"], r["runs"], r["bytes"], r["overlaps"]) for r in rows] == [
        (4, 1, 4, 250, False),
        (4, 1, 1, 100, True),
        (1, 2, 1, 25, False),
        (4, 2, 1, 80, False),
    ]
    assert [sent_bytes(r) for r in rows[2:]] == [(0, 25), (2 * 3 / 4 * 80, 2 * 1 / 2 * 20)]
