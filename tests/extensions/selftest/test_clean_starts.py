"""No config makes the self-test suspect devices that are right."""

import hypothesis
import hypothesis.strategies as st
import pytest

from benchmarks.selftest import start


@pytest.mark.slow
@hypothesis.settings(max_examples=3)
@hypothesis.given(number=st.integers(0, 10**6))
def test_a_clean_start_raises_no_alarm(tmp_path_factory, number):
    found = start(number, str(tmp_path_factory.mktemp("checkpoint")))
    assert not found["faults"], found["keys"]
