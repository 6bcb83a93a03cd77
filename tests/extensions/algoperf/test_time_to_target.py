"""The first evaluation that reaches a target: which one it is, what the clock counts, over resumes too; and the end of the run."""

import json
import signal
import time

import pytest
from etils import epath
from helpers.runs import start, tiny_run

from t2t_flax.errors import UserError
from t2t_flax.extensions.algoperf.hook import FILE, check_installed
from t2t_flax.training import loop
from t2t_flax.training.progress import read_metrics
from t2t_flax.training.workdir import completed

BLEU = dict(eval=dict(decode_every_steps=2, metric="bleu"))


def config_of(workdir, *, steps=8, target=30.0, **keys):
    return tiny_run(workdir, steps=steps, algoperf=dict(target=target, **keys), **BLEU)


def train(config, workdir, cache, scores=()):
    scores = iter(scores)

    def score(*_):
        time.sleep(0.01)  # what the clock leaves out
        return {"valid_bleu": next(scores)}

    return loop.train(start(config, workdir, cache), score=score)


def outcome(workdir) -> dict:
    return json.loads((workdir / FILE).read_text())


def clock(end) -> float:
    return pytest.approx(sum(end.seconds[name] for name in ("compile", "data", "step")), abs=0.002)


def test_first_evaluation_at_the_target_counts(tmp_path, cache):
    """As good is enough; the run goes on unless it is to stop. Its last update is evaluated, so that no time comes after it."""
    end = train(config_of(tmp_path), tmp_path, cache, [5.0, 30.0, 29.0, 31.0])
    found, lines = outcome(tmp_path), read_metrics(tmp_path)
    assert (end.reason, end.step) == ("steps", 8)
    assert (found["metric"], found["target"], found["reached"]["update"], found["last"]["update"]) == (
        "bleu",
        30.0,
        4,
        8,
    )
    trained = [line["target_tokens"] for line in lines if "target_tokens" in line]
    assert [found[name]["target_tokens"] for name in ("reached", "last")] == [sum(trained[:4]), sum(trained)]
    assert found["reached"]["seconds"] < found["last"]["seconds"] == clock(end)
    assert found["last"]["compile_seconds"] == pytest.approx(end.seconds["compile"], abs=0.002)
    assert end.seconds["eval"] >= 0.04
    logged = [line["training_seconds"] for line in lines if "training_seconds" in line]
    assert logged[1] == found["reached"]["seconds"] and logged == sorted(logged)


def test_a_target_that_is_never_reached(tmp_path, cache):
    train(config_of(tmp_path), tmp_path, cache, [5.0, float("nan"), 29.0, 28.0])
    assert outcome(tmp_path)["reached"] is None and outcome(tmp_path)["last"]["value"] == 28.0


@pytest.mark.smoke
def test_a_run_that_is_to_stop_ends_at_the_target(tmp_path, cache):
    """Also where it is killed before its final evaluation, and started again."""
    config = config_of(tmp_path, stop=True)
    first = train(config, tmp_path, cache, [5.0, 31.0])
    found = outcome(tmp_path)
    assert (first.reason, first.step, first.finished) == ("algoperf.stop", 4, True)
    again = train(config, tmp_path, cache)
    assert (again.reason, again.step, again.finished) == ("algoperf.stop", 4, True)
    assert outcome(tmp_path) == found
    marker = dict(step=4, reason="algoperf.stop", records={}, summary="", seconds={})
    (tmp_path / "complete.json").write_text(json.dumps(marker))
    assert "To continue, give --config.algoperf.stop=false." in completed(epath.Path(tmp_path), config)
    goes_on = config_of(tmp_path)
    assert completed(epath.Path(tmp_path), goes_on) is None
    assert train(goes_on, tmp_path, cache, [20.0, 20.0]).step == 8 and outcome(tmp_path)["reached"] == found["reached"]


def test_the_clock_goes_on_when_a_run_resumes(tmp_path, cache):
    """Compilation counts again, tokens do not."""
    first = train(config_of(tmp_path, steps=4), tmp_path, cache, [1.0, 2.0])
    before = outcome(tmp_path)["last"]
    second = train(config_of(tmp_path), tmp_path, cache, [3.0, 40.0])
    reached = outcome(tmp_path)["reached"]
    assert reached["update"] == 8 and reached["seconds"] == clock(second) and before["seconds"] == clock(first)
    assert second.seconds["compile"] > first.seconds["compile"]
    tokens = {line["step"]: line["target_tokens"] for line in read_metrics(tmp_path) if "target_tokens" in line}
    assert sorted(tokens) == list(range(1, 9)) and reached["target_tokens"] == sum(tokens.values())


def test_a_target_reached_in_an_evaluation_that_was_interrupted(tmp_path, cache):
    """The checkpoint was written before the evaluation, which the resumed run repeats and adds to it."""
    config = config_of(tmp_path, steps=6)

    def interrupted(params, after_batch, compiling):
        signal.raise_signal(signal.SIGTERM)
        while True:
            after_batch()
            time.sleep(0.01)

    assert not loop.train(start(config, tmp_path, cache), score=interrupted).finished
    assert outcome(tmp_path)["reached"] is None
    train(config, tmp_path, cache, [31.0, 5.0, 5.0])
    reached = outcome(tmp_path)["reached"]
    assert reached["update"] == 2
    train(config_of(tmp_path, steps=8), tmp_path, cache, [5.0])
    assert outcome(tmp_path)["reached"] == reached and outcome(tmp_path)["last"]["update"] == 8


def test_lower_is_better_for_the_loss(tmp_path, cache):
    losses = dict(eval=dict(every_steps=2), algoperf=dict(target=100.0, stop=True))
    end = loop.train(start(tiny_run(tmp_path, steps=4, **losses), tmp_path, cache), score=None)
    assert end.step == 2 and outcome(tmp_path)["reached"]["value"] < 100


def test_target_needs_evaluations(tmp_path):
    config = tiny_run(tmp_path, algoperf=dict(target=30.0), eval=dict(every_steps=2, metric="bleu"))
    with pytest.raises(UserError, match="which is never computed: set config.data.valid and eval.decode_every_steps"):
        check_installed(config)
    with pytest.raises(UserError, match="config.algoperf.stop = True needs config.algoperf.target, which is none"):
        tiny_run(tmp_path, algoperf=dict(stop=True)).group("algoperf").check(config)


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_target_of_the_test_set_is_of_a_metric_that_records_have(tmp_path, metric):
    config = tiny_run(tmp_path, algoperf=dict(target=2.0, test_target=2.0), eval=dict(every_steps=2, metric=metric))
    with pytest.raises(
        UserError, match=f"metric = {metric}, which is not computed for the test set: choose nll, ppl or"
    ):
        check_installed(config)
    check_installed(config.with_values({"eval.metric": "nll"}))
