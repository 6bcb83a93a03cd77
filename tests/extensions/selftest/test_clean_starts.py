"""No config makes the self-test suspect devices that are right."""

import pytest

from benchmarks.selftest import start

SMALL = 606
"""Eight devices along three axes, ZeRO-1, two microbatches, products in TF32, one layer of 32 dimensions."""


MUON = 28
"""Products of the model in bfloat16, and more of Muon's in float32."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [SMALL, MUON, *(pytest.param(n, marks=pytest.mark.drill) for n in range(20))])
def test_a_clean_start_raises_no_alarm(tmp_path, number):
    """`benchmarks.selftest` makes hundreds of starts."""
    found = start(number, str(tmp_path))
    assert not found["faults"], found["keys"]
