"""The committed plans of the big model: what they say, and, in the slow group, that the compiler still says it."""

import json
from pathlib import Path

import pytest

from t2t_flax.config import load_config
from t2t_flax.planning.ask import has_libtpu
from t2t_flax.planning.plan import make_plan
from t2t_flax.planning.topology import parse

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "results" / "plan_big.json"
PLANS = {plan["topology"]: plan for plan in json.loads(RECORD.read_text())}


def test_the_table_has_a_v5e_pod_and_a_v5p_slice_by_the_compiler():
    assert {name: plan["chips"] for name, plan in PLANS.items()} == {"v5e-256": 256, "v5p-128": 64}
    for plan in PLANS.values():
        memory = plan["train"]["memory"]
        assert plan["by"] == "compiler" and memory["peak"] < plan["hbm_per_device"]
        assert memory["argument"] == pytest.approx(plan["state_bytes"], rel=1e-3)
        assert plan["decode"]["fits"] and plan["decode"]["memory"]["peak"] < plan["hbm_per_device"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not has_libtpu(), reason="libtpu is not installed (extra plan)")
@pytest.mark.parametrize("name", ["v5e-256", pytest.param("v5p-128", marks=pytest.mark.drill)])  # 1 and 3 minutes
def test_the_compiler_says_what_the_table_says(name):
    before, now = PLANS[name], make_plan(load_config("aiayn_big"), parse(name))
    for step in ("train", "decode"):
        assert now[step]["memory"]["peak"] == pytest.approx(before[step]["memory"]["peak"], rel=0.03)
    sent = lambda plan: sum(row["bytes"] for row in plan["train"]["collectives"])  # noqa: E731
    assert sent(now) == pytest.approx(sent(before), rel=0.01)
