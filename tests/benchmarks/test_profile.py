"""The profile of the performance page: FLOPs of compiled products, groups of operations, CPU time of nested events."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.engines import ours_profile
from benchmarks.engines.ours_profile import facts_of, instruction_seconds
from benchmarks.environments import Environments
from benchmarks.profile import PRODUCTS, REST, group_of, summary, task_of
from benchmarks.rounds import Engine, run


def test_products_of_a_compiled_program_have_their_shapes_and_flops():
    def two(x, w, y):
        return jax.nn.relu(x @ w), jnp.einsum("bmk,bnk->bmn", y, y + 1)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 32), (32, 48), (3, 16, 8))]
    facts = facts_of(jax.jit(two).lower(*shapes).compile().as_text())
    products = {each.product: each.flops for each in facts.values() if each.product}
    assert products == {(1, 64, 32, 48): 2.0 * 64 * 32 * 48, (3, 16, 8, 16): 2.0 * 3 * 16 * 8 * 16}


def instruction(op_name="", opcodes=(), sizes=(), product=None):
    return {"op_name": op_name, "opcodes": opcodes, "sizes": sizes, "product": product}


@pytest.mark.parametrize(
    ("each", "group"),
    [
        (instruction("jit(step)/jvp(M)/encoder_0/feed_forward/dot", ["dot"], [8], (1, 8, 4, 2)), "feed-forward, forward"),
        (instruction("jit(step)/transpose(jvp(M))/x/query/dot", ["dot"], [8], (1, 8, 4, 2)), "projections of attention, backward"),
        (instruction("jit(run_stage)/x/self_attention.attend/dot", ["dot"], [8], (4, 8, 4, 2)), "attention: scores, weighted values"),
        (instruction("jit(run_stage)/while/dot", ["dot"], [8, 99], (1, 8, 4, 99)), "logits"),
        (instruction("jit(step)/jvp(M)/target_dropout/where", ["xor", "select"]), "dropout bits and their masks"),
        (instruction("jit(step)/x", ["gather"], [99]), "tables: lookups and their gradient"),
        (instruction("jit(run_stage)/while/body/top_k", ["reduce"], [99]), "top-k"),
        (instruction("jit(step)/jvp()/exp", ["exponential"], [512, 99]), "softmax, loss"),
        (instruction("jit(run_stage)/x", ["dynamic-update-slice"]), "cache and beams: writes, reordering"),
        (instruction("jit(step)/x/norm/mul", ["multiply"]), "layer norm"),
        (instruction("jit(step)/mul", ["multiply"], [99]), "optimizer"),
        (instruction("jit(step)/jvp(Transformer)/x", ["copy", "bitcast"]), "copies and layouts"),
        (instruction("jit(step)/jvp(Transformer)/x", ["add"]), "other elementwise"),
    ],
)  # fmt: skip
def test_operations_belong_to_groups(each, group):
    first, kind = group_of(each, 99)
    assert (kind if each["product"] else first) == group
    assert (first == PRODUCTS) == bool(each["product"])


def test_time_is_of_the_instruction_alone_without_preemption(monkeypatch):
    """Two repetitions on one thread: a loop of 10 ms around a product of 4 ms, 3 of which another process took the first time."""

    def event(name, start, end, op=""):
        stats = [("hlo_op", op), ("program_id", 7)] if op else []
        ms = 1_000_000
        return SimpleNamespace(
            name=name, start_ns=start * ms, end_ns=end * ms, duration_ns=(end - start) * ms, stats=stats
        )

    python = [event("repeat", 0, 20), event("repeat", 20, 40)]
    worker = [event("x", at + 1, at + 11, "while.1") for at in (0, 20)]
    worker += [event("x", at + 2, at + 6, "dot.1") for at in (0, 20)]
    planes = [SimpleNamespace(lines=[SimpleNamespace(events=events) for events in (python, worker)])]
    monkeypatch.setattr(jax.profiler.ProfileData, "from_file", lambda path: SimpleNamespace(planes=planes))
    clock = ours_profile._CpuClock()
    clock.starts = [5_000_000, 25_000_000]  # the trace began 5 ms after the clock's zero
    clock._times = [int(t * 1e6) for t in (0, 8, 11, 100)]
    clock._cpu = [int(t * 1e6) for t in (0, 8, 8, 97)]
    seconds = instruction_seconds("x", clock)
    assert {key: count for key, (_, count) in seconds.items()} == {(7, "while.1"): 1, (7, "dot.1"): 1}
    assert seconds[7, "dot.1"][0] == pytest.approx(1e-3) and seconds[7, "while.1"][0] == pytest.approx(6e-3)
    assert np.allclose(clock.seconds(np.array([0.0]), np.array([1e6])), 1e-3)


@pytest.mark.slow
def test_profile_of_a_small_step_counts_the_flops_of_the_formula(tmp_path):
    from benchmarks.engines.ours_training import config_of
    from benchmarks.models import SIZES, load_batches
    from t2t_flax.extensions.planning.flops import Tokens, training_products
    from t2t_flax.training.model_summary import abstract_state

    environments = Environments("", install=False)
    task, what = task_of("training_mini", tmp_path, 2, environments)
    part = summary(run(Engine("mini", "ours_profile"), task, environments), what, (0.0, 0.0))
    assert sum(part["shares"].values()) == pytest.approx(1, abs=0.01) and part["shares"][REST] >= 0
    [(source, target)] = load_batches(task["batches"])
    s, t, rows = source.size, target.size, len(source)
    padded = Tokens(s, t, s * s / rows, t * t / rows, s * t / rows)
    size = SIZES["mini"]
    counted = sum(e["share"] * e["gflops"] for e in part["products"].values())
    assert counted == pytest.approx(part["gflops"], rel=0.02)
    seconds = part["operations_seconds"] / (1 - part["shares"][REST])
    config, vocab = config_of(size), size["vocab"]
    params = abstract_state(config, (vocab, vocab)).params
    expected = training_products(config, vocab, params).flops(config.model, padded)
    assert part["gflops"] * seconds * 1e9 == pytest.approx(expected, rel=0.06)
