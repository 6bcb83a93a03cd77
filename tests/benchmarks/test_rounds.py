"""Engines of a benchmark take turns; what is missing is skipped."""

import json

import pytest
from helpers.refusals import refused

from benchmarks import rounds
from benchmarks.environments import Environments, Unavailable
from benchmarks.record import command_of
from benchmarks.rounds import Engine, measure, ratios, spread

TASK = {"threads": 1}


@pytest.fixture
def calls(monkeypatch):
    """The (engine, arrangement) of every process that would have been started.

    `absent` cannot run.
    """
    calls = []

    def run(engine, task, environments):
        if engine.name == "absent":
            raise Unavailable("no such package")
        calls.append((engine.name, task.get("threads_each")))
        return {"speed": len(calls) + task.get("threads_each", 0)}

    monkeypatch.setattr(rounds, "run", run)
    return calls


def run_rounds(engines, count, tmp_path):
    environments = Environments(str(tmp_path), install=False)
    return measure(engines, TASK, count, environments, lambda result: result["speed"])


def test_engines_alternate_and_missing_ones_are_skipped(calls, tmp_path):
    engines = [Engine("a", "x"), Engine("absent", "x", "torch"), Engine("b", "x")]
    results, skipped = run_rounds(engines, 2, tmp_path)
    assert [name for name, _ in calls] == ["a", "b", "a", "b"]
    assert skipped == {"absent": "no such package"}
    assert {name: len(results) for name, results in results.items()} == {"a": 2, "b": 2}


def test_failure_of_an_own_engine_ends_the_benchmark(calls, tmp_path):
    with refused("absent", error=SystemExit):
        run_rounds([Engine("absent", "x")], 1, tmp_path)


def test_later_rounds_run_the_best_arrangement(calls, tmp_path):
    engine = Engine("a", "x", variants={"1x2": {"threads_each": 20}, "2x1": {"threads_each": 10}})
    results, _ = run_rounds([engine], 2, tmp_path)
    assert [each for _, each in calls] == [20, 10, 20]
    first, second = results["a"]
    assert first["variant"] == second["variant"] == "1x2" and first["tried"] == {
        "1x2": 21,
        "2x1": 12,
    }


def test_failing_process_is_skipped_with_its_last_line(tmp_path):
    with refused("no_such_engine", error=Unavailable):
        rounds.run(Engine("a", "no_such_engine"), TASK, Environments(str(tmp_path), install=False))


def test_engine_beyond_its_time_is_skipped(tmp_path):
    with pytest.raises(Unavailable):
        rounds.run(
            Engine("a", "matmul", timeout=0.01), TASK, Environments(str(tmp_path), install=False)
        )


def test_ratios_are_of_the_same_round():
    assert ratios([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == {
        "median": 3.0,
        "min": 2.0,
        "max": 4.0,
        "all": [2.0, 3.0, 4.0],
    }
    assert (
        json.dumps(spread([1.23456]))
        == '{"median": 1.235, "min": 1.235, "max": 1.235, "all": [1.235]}'
    )


def test_an_own_engine_for_which_the_machine_lacks_something_is_skipped(calls, tmp_path):
    def needs_bfloat16():
        raise Unavailable("no bfloat16")

    results, skipped = run_rounds(
        [Engine("a", "x"), Engine("a_bfloat16", "x", needs=needs_bfloat16)], 2, tmp_path
    )
    assert (
        skipped == {"a_bfloat16": "no bfloat16"}
        and results.keys() == {"a"}
        and calls == [("a", None)] * 2
    )


def test_command_of_a_record_has_no_path_of_this_machine():
    given = [
        "--workdir",
        "/home/me/runs/toy",
        "--rounds",
        "3",
        "--out=/tmp/x.json",
        "--environments",
        "/tmp/e",
        "--no-install",
    ]
    assert (
        command_of("decoding", given)
        == "python -m benchmarks.decoding --workdir=runs/toy --rounds=3"
    )
    assert (
        command_of("start", ["--workdir=pretrained:toy"])
        == "python -m benchmarks.start --workdir=pretrained:toy"
    )
