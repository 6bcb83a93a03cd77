"""The final evaluation of a run: its checkpoint, its test sets and its memory."""

import functools
import json
import shutil

import jax
import pytest
from etils import epath
from helpers.records import without_search
from helpers.refusals import assert_names
from helpers.runs import start, tiny_run

from t2t_flax import api
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.evaluation.sets import finish
from t2t_flax.training import loop
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.hooks import Hook
from t2t_flax.training.workdir import adopt_config, completed, mark_as_training

QUICK = dict(
    log=dict(every_steps=10), decode=dict(beam_size=1, max_length_offset=2, max_length_ratio=0.2)
)
SETS = "short=toy:test:3; long.er=toy:test:5"


def config_of(workdir, test=SETS, **checkpoint):
    return tiny_run(
        workdir,
        steps=6,
        eval=dict(decode_every_steps=2, metric="bleu", patience=1, bootstrap_samples=0),
        checkpoint=dict(every_steps=2, keep_last=2) | checkpoint,
        data=dict(test=test),
        **QUICK,
    )


@pytest.fixture(scope="module")
def early_stopped_run(tmp_path_factory, cache):
    """A run that early stopping ended at update 4, with its best checkpoint at 2."""
    workdir, scores = tmp_path_factory.mktemp("ended"), iter([3.0, 2.0])
    outcome = loop.train(
        start(config_of(workdir), workdir, cache), score=lambda *_: {"valid_bleu": next(scores)}
    )
    assert (outcome.reason, outcome.step) == ("patience", 4)
    return workdir


@pytest.fixture
def copy(early_stopped_run, tmp_path, monkeypatch):
    without_search(monkeypatch)
    return epath.Path(shutil.copytree(early_stopped_run, tmp_path / "copy"))


def finish_run(config, workdir, reason="patience", hooks=()):
    """complete.json and the records it lists."""
    mark_as_training(workdir, config)
    with RunSupervisor(ProcessGroup(), config) as supervisor:
        finish(config, workdir, loop.TrainingEnd(None, 4, reason, {}, hooks), supervisor)
    marker = json.loads((workdir / "complete.json").read_text())
    return marker, {
        name: json.loads((workdir / "eval" / file).read_text())
        for name, file in marker["records"].items()
    }


def test_early_stopped_run_is_evaluated_at_its_best_checkpoint(copy, capsys):
    marker, records = finish_run(config_of(copy), copy)
    assert marker["records"] == {"short": "short-2-best.json", "long.er": "long.er-2-best.json"}
    for name, sentences in (("short", 3), ("long.er", 5)):
        assert records[name]["split"] == name and records[name]["data"]["sentences"] == sentences
        checkpoint = records[name]["checkpoint"]
        assert checkpoint["averaged"] == [2] and checkpoint["best"] == {
            "metric": "bleu",
            "value": 3.0,
        }
        assert "config.eval.patience" in checkpoint["why"]
    out = capsys.readouterr().out
    assert out.count("3.0000") == 2 and out.count("record: ") == 2


@pytest.mark.parametrize(
    ("reason", "average_last", "record", "why"),
    [
        ("patience", 2, "test-4-mean2.json", "config.checkpoint.average_last"),
        ("steps", 2, "test-4-mean2.json", "config.checkpoint.average_last"),
        ("steps", 0, "test-4.json", "newest"),
    ],
)
def test_requested_average_takes_precedence(copy, reason, average_last, record, why):
    marker, records = finish_run(
        config_of(copy, test="toy:test:2", average_last=average_last), copy, reason
    )
    assert marker["records"] == {"test": record}
    assert why in records["test"]["checkpoint"]["why"]


def test_scores_of_the_test_sets_go_to_the_hooks(copy):
    ended = []

    _, records = finish_run(
        config_of(copy), copy, hooks=[Hook("end", lambda *end: ended.append(end))]
    )
    ((step, values),) = ended
    assert (
        step == 4 and values["short_sacrebleu"] == records["short"]["scores"]["sacrebleu"]["score"]
    )
    assert values["long.er_nll"] == records["long.er"]["scores"]["nll"]


def test_newest_checkpoint_is_evaluated_without_a_metric(copy, monkeypatch):
    monkeypatch.setattr(Checkpoints, "metrics", lambda self: {})
    _, records = finish_run(config_of(copy, test="toy:test:2"), copy)
    checkpoint = records["test"]["checkpoint"]
    assert (
        checkpoint["averaged"] == [4] and "newest" in checkpoint["why"] and "best" not in checkpoint
    )


def test_complete_run_lists_the_record_of_each_set(copy):
    config = config_of(copy)
    finish_run(config, copy)
    output = completed(copy, config)
    assert_names(output, f"{copy}/eval/short-2-best.json", f"{copy}/eval/long.er-2-best.json")


def test_training_state_is_freed_before_the_final_evaluation(tmp_path, cache, monkeypatch):
    import t2t_flax.evaluation.sets as loading
    import t2t_flax.training.setup as running

    without_search(monkeypatch)
    monkeypatch.setattr(
        running,
        "set_up_training",
        functools.partial(running.set_up_training, devices=jax.devices()[:1]),
    )
    config = tiny_run(
        tmp_path, steps=2, checkpoint=dict(every_steps=2), data=dict(test="toy:test:2"), **QUICK
    )
    config = config.with_values({"data.cache": str(cache), "mesh.data": -1})
    live = lambda: sum(x.nbytes for x in jax.live_arrays())  # noqa: E731
    before, sizes, original = live(), [], loading.load

    def counted(*arguments, **options):
        sizes.append(live() - before)
        loaded = original(*arguments, **options)
        sizes.append(sum(x.nbytes for x in jax.tree.leaves(loaded.params)))
        return loaded

    monkeypatch.setattr(loading, "load", counted)
    adopt_config(epath.Path(tmp_path), config)
    assert api.train(config, tmp_path).finished
    live_bytes, parameters = sizes
    assert live_bytes < parameters / 10
