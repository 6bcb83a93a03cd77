"""The table of traffic of a program that was compiled before."""

import json

import pytest
from helpers.refusals import refused

from benchmarks import traffic

PROGRAM = """HloModule m
ENTRY %main (a: f32[750000000]) -> f32[750000000] {
  %a = f32[750000000] parameter(0)
  %b = f32[750000000] negate(%a), metadata={op_name="feed_forward/neg"}, backend_config={"estimated_cycles":"3006"}
  ROOT %c = f32[750000000] custom-call(%b), custom_call_target="tpu_custom_call"
}
"""


@pytest.mark.parametrize(
    ("machine", "feed_forward", "everything"),
    [
        (
            "h100-1",
            dict(kernels=1, custom_calls=0, gb=6.0, tflop=0.0, model_ms=2.0),
            dict(kernels=2, custom_calls=1, gb=12.0, tflop=0.0, model_ms=4.0),
        ),
        (
            "v5e-8",
            dict(kernels=1, custom_calls=0, mcycles=0.003, estimated_ms=0.0),
            dict(kernels=1, custom_calls=1, mcycles=0.003, estimated_ms=0.0),
        ),
    ],
)
def test_parts_of_a_program_are_recorded(machine, feed_forward, everything, tmp_path):
    program, out = tmp_path / "program.hlo", tmp_path / "record.json"
    program.write_text(PROGRAM)
    traffic.main([f"--topology={machine}", f"--hlo={program}", f"--out={out}"])
    parts = json.loads(out.read_text())["parts"]
    assert (parts["feed-forward"], parts["all"]) == (feed_forward, everything)


def test_machines_without_a_data_sheet_are_refused():
    with refused("cpu:8"):
        traffic.main(["--topology=cpu:8", "--config=aiayn_base"])
