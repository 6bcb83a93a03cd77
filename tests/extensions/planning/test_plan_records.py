"""The committed plans, made with the real compilers by the commands in docs/planning.md."""

import json
from pathlib import Path

import pytest

from t2t_flax.extensions.planning.plan import roofline
from t2t_flax.extensions.planning.topology import parse

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
RECORDS = sorted(RESULTS.glob("plan_*.json"))
PLANS = [plan for record in RECORDS for plan in json.loads(record.read_text())]


@pytest.mark.parametrize(
    "plan", PLANS, ids=lambda plan: f"{plan['topology']}-{plan['flops_per_device']:.0e}"
)
def test_recorded_programs_fit_in_memory_with_their_state(plan):
    train = plan["train"]
    assert train["fits"] and train["memory"]["peak"] < plan["usable_bytes"]
    # Parts of arrays are padded to whole tiles.
    padded = 1.001 if plan["mesh"]["fsdp"] == 1 else 1.5
    assert 1 <= train["memory"]["argument"] / plan["state_bytes"] < padded
    line = roofline(
        parse(plan["topology"]),
        plan["flops_per_device"],
        2 * plan["state_bytes"],
        train["collectives"],
    )
    assert plan["bound"]["seconds"] == pytest.approx(line.seconds)
    compiled = train["traffic"] if parse(plan["topology"]).platform == "gpu" else train["estimate"]
    assert plan["rates"]["seconds"] == pytest.approx(max(line.seconds, compiled["seconds"]))


def test_base_and_big_are_recorded():
    topologies = {
        record.name: {plan["topology"] for plan in json.loads(record.read_text())}
        for record in RECORDS
    }
    assert (
        topologies["plan_base.json"] >= {"v5e-8", "h100-8"}
        and "h100-8" in topologies["plan_big.json"]
    )


def test_planned_memory_of_base_is_what_an_h100_needed():
    """Both records are of the program of that time."""
    (plan,) = json.loads((RESULTS / "plan_base_h100.json").read_text())
    measured = json.loads((RESULTS / "accelerator_h100.json").read_text())["rows"]["base"]
    assert plan["train"]["memory"]["peak"] / 2**30 == pytest.approx(measured["peak_gib"], rel=0.05)


def test_recorded_base_programs_exchange_each_parameter_once_in_bfloat16():
    for plan in json.loads(next(r for r in RECORDS if r.name == "plan_base.json").read_text()):
        parameters = plan["state_bytes"] / 12
        exchanged = sum(row["bytes"] for row in plan["train"]["collectives"])
        assert exchanged == pytest.approx(2 * parameters, rel=0.01)
