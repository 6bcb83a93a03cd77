"""The profile of the performance page.

Shapes of compiled products, groups of operations, time of nested events.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from benchmarks.engines.ours_profile import facts_of, own_seconds
from benchmarks.environments import Environments
from benchmarks.profile import PRODUCTS, group_of, summary, task_of
from benchmarks.rounds import Engine, run


def test_products_of_a_compiled_program_have_their_shapes():
    def two(x, w, y):
        return jax.nn.relu(x @ w), jnp.einsum("bmk,bnk->bmn", y, y + 1)

    shapes = [
        jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 32), (32, 48), (3, 16, 8))
    ]
    facts = facts_of(jax.jit(two).lower(*shapes).compile().as_text())
    assert {each["product"] for each in facts.values() if each["product"]} == {
        (1, 64, 32, 48),
        (3, 16, 8, 16),
    }


@pytest.mark.parametrize(
    ("result", "left", "right", "product"),
    [
        ("12,7", "12,5", "5,7", (1, 12, 5, 7)),
        ("3,12,7", "3,12,5", "3,5,7", (3, 12, 5, 7)),
        ("9,22,8,64", "9,8,22,22", "9,8,22,64", (72, 22, 22, 64)),
        ("8,64,9,22", "9,22,8,64", "9,8,22,22", (72, 64, 22, 22)),
    ],
)
def test_products_of_onednn_have_their_shapes(result, left, right, product):
    text = f"""HloModule m

ENTRY %main (a: bf16[{left}], b: bf16[{right}]) -> bf16[{result}] {{
  %a = bf16[{left}] parameter(0)
  %b = bf16[{right}] parameter(1)
  ROOT %c = bf16[{result}] custom-call(%a, %b), custom_call_target="__onednn$matmul"
}}
"""
    assert facts_of(text)["c"]["product"] == product


def instruction(op_name="", opcodes=(), sizes=(), product=None):
    return {"op_name": op_name, "opcodes": opcodes, "sizes": sizes, "product": product}


@pytest.mark.parametrize(
    ("each", "group"),
    [
        (instruction("jit(step)/jvp(M)/encoder_0/feed_forward/dot", ["dot"], [8], (1, 8, 4, 2)), "feed-forward, forward"),
        (instruction("jit(step)/transpose(jvp(M))/x/query/dot", ["dot"], [8], (1, 8, 4, 2)), "projections of attention, backward"),
        (instruction("jit(run_stage)/x/self_attention.attend/dot", ["dot"], [8], (4, 8, 4, 2)), "attention: scores, weighted values"),
        (instruction("jit(run_stage)/while/dot", ["dot"], [8, 99], (1, 8, 4, 99)), "logits"),
        (instruction("jit(step)/jvp()/while/add", ["dot"], [8, 99], (1, 99, 8, 4)), "logits, backward"),
        (instruction("jit(step)/jvp(M)/target_dropout/where", ["xor", "select"]), "dropout bits and their masks"),
        (instruction("jit(step)/x", ["gather"], [99]), "tables: lookups and their gradient"),
        (instruction("jit(run_stage)/while/body/top_k", ["reduce"], [99]), "top-k"),
        (instruction("jit(step)/jvp()/exp", ["exponential"], [512, 99]), "softmax, loss"),
        (instruction("jit(run_stage)/x", ["dynamic-update-slice"]), "cache and beams: writes, reordering"),
        (instruction("jit(step)/x/norm/mul", ["multiply"]), "layer norm"),
        (instruction("jit(step)/mul", ["multiply"], [99]), "optimizer"),
        (instruction("jit(step)/jvp(Transformer)/x", ["copy", "bitcast"]), "copies and layouts"),
        (instruction("jit(step)/jvp(Transformer)/x", ["convert", "fusion"]), "conversions of type"),
        (instruction("jit(step)/jvp(Transformer)/x", ["add"]), "other elementwise"),
    ],
)  # fmt: skip
def test_operations_belong_to_groups(each, group):
    first, kind = group_of(each, 99)
    assert group == (kind if first == PRODUCTS else first)


def test_a_loop_is_not_counted_twice():
    def event(start, length, name=None):
        stats = [("program_id", 1), ("hlo_op", name)] if name else []
        return SimpleNamespace(start_ns=start, duration_ns=length, stats=stats)

    events = [
        event(0, 100),
        event(10, 80, "while"),
        event(20, 30, "dot"),
        event(60, 20),
        event(65, 10, "add"),
    ]
    assert sorted(own_seconds(events)) == [
        ((1, "add"), 10e-9),
        ((1, "dot"), 30e-9),
        ((1, "while"), 40e-9),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["training_mini", "decoding_mini"])
def test_a_profile_names_the_products(part, tmp_path):
    task, what = task_of(part, tmp_path, 1, Environments("", install=False))
    found = summary(run(Engine(part, "ours_profile"), task, Environments("", install=False)), what)
    assert (
        sum(found["shares"].values()) == pytest.approx(1, abs=0.02)
        and found["shares"][PRODUCTS] > 0
    )
    assert any(kind.startswith("logits") for kind in found["products"])
