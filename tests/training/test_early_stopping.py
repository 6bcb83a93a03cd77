"""Early stopping and the best checkpoint."""

import json
import signal
import time
from types import SimpleNamespace

import pytest
from etils import epath
from helpers.refusals import assert_names
from helpers.runs import start, tiny_run

from t2t_flax.config import Config
from t2t_flax.training import loop
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.parts import TrainingSetup, TrainProgress
from t2t_flax.training.progress import read_metrics
from t2t_flax.training.run import note_metric, worse_than_start
from t2t_flax.training.workdir import completed


def test_patience_stops_the_run_and_keeps_the_best_checkpoint(tmp_path, cache):
    scores = iter([5.0, 9.0, 8.0, 7.0, 6.0, 5.0])
    config = tiny_run(
        tmp_path,
        steps=40,
        eval=dict(decode_every_steps=2, metric="bleu", patience=3),
        checkpoint=dict(every_steps=100, keep_last=1, keep_best=1),
    )
    outcome = loop.train(
        start(config, tmp_path, cache), score=lambda *_: {"valid_bleu": next(scores)}
    )
    assert (outcome.reason, outcome.step, outcome.finished) == ("patience", 10, True)
    assert Checkpoints(tmp_path / "checkpoints", keep_last=9).steps() == [4, 10]


@pytest.mark.slow
def test_early_stopped_run_resumes_with_larger_patience(tmp_path, cache):
    keys = dict(steps=40, eval=dict(decode_every_steps=2, metric="bleu", patience=1))
    config = tiny_run(tmp_path, **keys)
    outcome = loop.train(start(config, tmp_path, cache), score=lambda *_: {"valid_bleu": 1.0})
    assert (outcome.reason, outcome.step) == ("patience", 4)
    marker = dict(step=4, reason="patience", records={}, summary="", seconds={})
    (tmp_path / "complete.json").write_text(json.dumps(marker))
    assert_names(completed(epath.Path(tmp_path), config), "--config.eval.patience", "1")
    other = config.with_values({"data.test": "toy:test:3"})
    assert_names(completed(epath.Path(tmp_path), other), "config.data.test", "toy:test:3")
    assert "config.data.test" not in completed(epath.Path(tmp_path), config)
    for patience in (2, 0):
        assert (
            completed(
                epath.Path(tmp_path),
                tiny_run(tmp_path, **keys | {"eval": keys["eval"] | {"patience": patience}}),
            )
            is None
        )
    longer = tiny_run(tmp_path, **keys | {"eval": keys["eval"] | {"patience": 3}})
    start(longer, tmp_path, cache)  # and is killed
    assert completed(epath.Path(tmp_path), longer) is None
    assert (
        loop.train(start(longer, tmp_path, cache), score=lambda *_: {"valid_bleu": 1.0}).step == 8
    )


@pytest.mark.slow
def test_interrupted_evaluation_still_decides_the_best_checkpoint(tmp_path, cache):
    config = tiny_run(
        tmp_path,
        steps=6,
        eval=dict(decode_every_steps=2, metric="bleu"),
        checkpoint=dict(every_steps=2, keep_last=1, keep_best=1),
    )

    def interrupted(params, after_batch, compiling):
        signal.raise_signal(signal.SIGTERM)
        while True:
            after_batch()
            time.sleep(0.01)

    stopped = loop.train(start(config, tmp_path, cache), score=interrupted)
    assert (stopped.step, stopped.finished) == (2, False)
    scores = iter([9.0, 8.0, 7.0])
    assert (
        loop.train(
            start(config, tmp_path, cache), score=lambda *_: {"valid_bleu": next(scores)}
        ).step
        == 6
    )
    assert Checkpoints(tmp_path / "checkpoints", keep_last=9).steps() == [2, 6]


@pytest.mark.slow
def test_best_checkpoint_by_token_accuracy(tmp_path, cache):
    keys = dict(
        eval=dict(every_steps=1, metric="accuracy"), checkpoint=dict(every_steps=100, keep_last=1)
    )
    loop.train(start(tiny_run(tmp_path, steps=6, **keys), tmp_path, cache), score=None)
    accuracy = {
        line["step"]: line["valid_accuracy"]
        for line in read_metrics(tmp_path)
        if "valid_accuracy" in line
    }
    best = max(accuracy, key=accuracy.get)  # the first of equals
    assert len(accuracy) == 6 and Checkpoints(
        tmp_path / "checkpoints", keep_last=9
    ).steps() == sorted({best, 6})


@pytest.mark.parametrize(
    "change",
    [
        dict(data=dict(valid="toy:valid:20")),
        pytest.param(dict(decode=dict(beam_size=3)), marks=pytest.mark.slow),
    ],
)
def test_metrics_of_other_data_or_translations_do_not_compete(tmp_path, cache, change):
    """A run resumed with another validation set, or another search, is measured from there on."""
    keys = dict(
        eval=dict(decode_every_steps=2, metric="bleu", patience=2),
        checkpoint=dict(every_steps=2, keep_last=1, keep_best=1),
    )
    scores = iter([9.0, 8.0, 3.0, 4.0, 2.0, 1.0])
    score = lambda *_: {"valid_bleu": next(scores)}  # noqa: E731
    loop.train(start(tiny_run(tmp_path, steps=4, **keys), tmp_path, cache), score=score)
    checkpoints = lambda: Checkpoints(tmp_path / "checkpoints", keep_last=9)  # noqa: E731
    assert checkpoints().steps() == [2, 4] and checkpoints().metrics() == {2: 9.0, 4: 8.0}
    said = []
    other = start(tiny_run(tmp_path, steps=40, **keys, **change), tmp_path, cache)
    outcome = loop.train(other, score=score, say=said.append)
    assert (outcome.reason, outcome.step) == ("patience", 12) and checkpoints().steps() == [8, 12]
    assert checkpoints().metrics() == {8: 4.0, 12: 1.0}
    assert any("config.eval.metric" in line and "bleu" in line for line in said)


@pytest.mark.parametrize(("metric", "same"), [("nll", True), ("bleu", False)])
def test_only_metrics_of_translations_depend_on_the_search(tmp_path, cache, metric, same):
    keys = dict(eval=dict(metric=metric, decode_every_steps=2))
    one, other = (
        start(tiny_run(tmp_path, decode=dict(beam_size=size), **keys), tmp_path, cache)
        for size in (4, 3)
    )
    assert (one.metric_digest == other.metric_digest) == same


@pytest.mark.parametrize(
    ("keys", "same"),
    [
        ({"alignments.layer": 1, "alignments.row": "reads"}, True),
        ({"decode.batch_size": 8}, True),
        ({"eval.bootstrap_samples": 0}, True),
        ({"decode.precision": "float32", "decode.engine": "ctranslate2"}, True),
        ({"decode.strategy": "sample", "decode.seed": 3}, False),
    ],
)
def test_metrics_of_translations_depend_on_keys_that_change_these(keys, same):
    base = Config().with_values({"eval.metric": "bleu", "eval.decode_every_steps": 10})
    digests = {
        TrainingSetup.metric_digest.fget(
            SimpleNamespace(config=config, corpus=SimpleNamespace(valid={}))
        )
        for config in (base, base.with_values(keys))
    }
    assert (len(digests) == 1) == same


def test_a_run_that_has_passed_its_last_update_ends_though_an_evaluation_was_due(tmp_path, cache):
    keys = dict(eval=dict(decode_every_steps=4, metric="bleu"))

    def interrupted(params, after_batch, compiling):
        signal.raise_signal(signal.SIGTERM)
        while True:
            after_batch()
            time.sleep(0.01)

    loop.train(start(tiny_run(tmp_path, steps=6, **keys), tmp_path, cache), score=interrupted)
    outcome = loop.train(start(tiny_run(tmp_path, steps=3, **keys), tmp_path, cache), score=None)
    assert (outcome.reason, outcome.step) == ("steps", 4)


@pytest.mark.parametrize(
    ("values", "noted"),
    [
        ([(0, 2.0), (4, 2.1)], True),
        ([(0, 2.0), (4, float("nan"))], True),
        ([(0, 2.0), (2, 2.1), (4, 2.0)], False),
        ([(0, float("nan")), (4, 9.0)], False),
        ([(2, 2.0), (4, 2.1)], False),
        ([], False),
    ],
)
def test_an_end_that_is_worse_than_the_start_is_noted(tmp_path, values, noted):
    lines = [json.dumps({"step": step, "valid_nll": value}) + "\n" for step, value in values]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert bool(worse_than_start(SimpleNamespace(config=Config(), workdir=tmp_path))) == noted


def test_non_finite_metric_is_never_the_best():
    progress = TrainProgress()
    for step, (value, metric) in enumerate(
        [(float("nan"), None), (3.0, 3.0), (float("inf"), None), (4.0, 4.0)], 1
    ):
        assert note_metric(progress, {"valid_bleu": value}, step, "bleu") == metric
    assert (progress.best_metric, progress.best_step, progress.evaluations_without_better) == (
        4.0,
        4,
        0,
    )
