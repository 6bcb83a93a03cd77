"""Runs become points, and a law is fitted to them and shown."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from helpers.refusals import refused, refused_command
from helpers.runs import start, tiny_run

from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.scaling import fit_command
from t2t_flax.extensions.scaling.compute_optimal import iso_flop
from t2t_flax.extensions.scaling.points import INPUTS, Point, RunPoint, group, read_runs
from t2t_flax.training import loop


@pytest.mark.slow
def test_sizes_tokens_and_losses_are_those_of_the_run(tmp_path, cache):
    """The batches grow, and the run is stopped and resumed."""
    for steps in (3, 6):
        run = tiny_run(
            tmp_path / "run", steps=steps, eval=dict(every_steps=3), log=dict(every_steps=2)
        )
        run = run.with_values({"mixtures.batch_tokens": "4: 1024"})
        setup = start(run, tmp_path / "run", cache)
        loop.train(setup, score=None)
    assert read_runs([str(tmp_path / "run")]) == ([], ["run"])
    (tmp_path / "run" / "complete.json").write_text("{}")
    ((point,), _) = read_runs([str(tmp_path / "run")])
    params = load(tmp_path / "run").params
    for side in ("encoder", "decoder"):
        layers = [tree for name, tree in params.items() if name.startswith(f"{side}_")]
        import jax

        assert getattr(point, side) == sum(x.size for x in jax.tree.leaves(layers))
    tokens = list(itertools.accumulate(setup.batches.batch(k).target_tokens for k in range(6)))
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["total_target_tokens"] for line in lines] == [
        tokens[line["step"] - 1] for line in lines
    ]
    assert tokens[-1] > 1.5 * 6 * tokens[0] and point.tokens == tokens[-1]
    assert point.loss == min(line["valid_nll"] for line in lines if "valid_nll" in line)
    assert point.corpus == setup.corpus.train.meta["target"]["tokens"]
    # A later evaluation with a higher loss changes nothing.
    worse = {
        "step": 9,
        "valid_nll": 99.0,
        "total_source_tokens": 10**9,
        "total_target_tokens": 10**9,
    }
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(worse) + "\n")
    assert read_runs([str(tmp_path / "run")])[0] == [point]
    (tmp_path / "other").mkdir()
    with refused("other"):
        read_runs([str(tmp_path / "other")])


def made(monkeypatch, runs):
    monkeypatch.setattr(fit_command, "read_runs", lambda workdirs: (runs, ["r99"]))


def ladder(noise=0.003):
    rng = np.random.default_rng(0)
    sizes = [round(1e5 * 2**k) for k in range(7)]
    losses = [
        (2.0 + 20 * n**-0.3) * math.exp(noise * rng.standard_normal())
        for n in sizes
        for _ in range(2)
    ]
    return [
        RunPoint(f"r{i}", n // 3, n - n // 3, 1e6 * (1 + 0.001 * (i % 2)), 1e7, 6e6 * n, loss)
        for i, (n, loss) in enumerate(zip(np.repeat(sizes, 2).tolist(), losses, strict=True))
    ]


def test_the_largest_size_is_predicted_from_the_others(monkeypatch, capsys, tmp_path):
    made(monkeypatch, ladder())
    picture = tmp_path / "law.svg"
    assert fit_command.run(["runs", "--hold-out=1", "--predict=2e7", f"--picture={picture}"]) == 0
    shown = capsys.readouterr().out
    assert (
        "r99" in shown
        and "6 points" in shown
        and shown.count("predicted") == 2
        and "OUTSIDE" not in shown
    )
    assert picture.read_text().lstrip().startswith("<?xml")


def test_points_that_follow_no_such_law_are_told(monkeypatch, capsys):
    """A loss that falls ever faster with the size: no floor is told, and the misfit is said.

    Not so of the ladder.
    """
    made(monkeypatch, ladder())
    assert fit_command.run(["runs"]) == 0
    assert "p =" not in capsys.readouterr().out
    curved = [
        dataclasses.replace(
            run, loss=run.loss * math.exp(-(math.log(run.parameters / 1e5) ** 2) / 10)
        )
        for run in ladder()
    ]
    made(monkeypatch, curved)
    assert fit_command.run(["runs"]) == 0
    shown = capsys.readouterr().out
    assert "p =" in shown and "L_inf  0 (" in shown


@pytest.mark.parametrize("different", [False, True])
def test_runs_with_different_tokenizers_are_named(monkeypatch, capsys, different):
    made(
        monkeypatch,
        [
            dataclasses.replace(run, tokenizer="b" if different and i else "a")
            for i, run in enumerate(ladder())
        ],
    )
    assert fit_command.run(["runs"]) == 0
    assert ("r0 and r13" in capsys.readouterr().out) == different


@pytest.mark.parametrize(("flags", "name"), [
    (["--hold-out=7"], "--hold-out=7"), (["--predict=1e7,1e7"], "--predict=1e7,1e7"), (["--law=sizes"], "--law"),
    (["--law=iso_flop", "--predict=1e7"], "--law=iso_flop"), (["--config.train.steps=3"], "--config.KEY=VALUE."),
])  # fmt: skip
def test_wrong_flags_are_refused(monkeypatch, flags, name):
    made(monkeypatch, ladder())
    refused_command(["fit_scaling", "runs", *flags], name)


def test_runs_of_one_point_differ_in_seeds_alone():
    points = group(ladder(), ["parameters"])
    assert [len(point.runs) for point in points] == [2] * 7
    assert set(INPUTS) >= {name for law in fit_command.LAWS.values() for name in law.inputs}


def test_profiles_find_the_best_sizes():
    """L = A N^-0.34 + B D^-0.28 + E, whose best size grows by a known power of FLOPs."""
    power = 0.28 / (0.34 + 0.28)

    def loss(n, flops):
        return 1.7 + 400 * n**-0.34 + 410 * (flops / 6 / n) ** -0.28

    def best(flops):
        return (0.34 * 400 / (0.28 * 410)) ** (1 / 0.62) * (flops / 6) ** power

    def point(n, budget):
        return Point(
            (n, budget), (RunPoint("", 0, n, budget / 6 / n, 0.0, budget, loss(n, budget)),)
        )

    profiles = [
        point(best(c) * k, c) for c in (1e18, 1e19, 1e20, 1e21) for k in (0.5, 0.7, 1.0, 1.4, 2.0)
    ]
    assert iso_flop(profiles, draws=50).exponent.value == pytest.approx(power, abs=0.01)
    with refused("5 at"):
        iso_flop(profiles[:5], draws=10)
