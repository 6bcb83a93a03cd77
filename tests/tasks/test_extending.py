"""The example metric and task of docs/extending.md, registered and used in every command."""

import json

import pytest
from helpers import documented_modules
from helpers.configs import small_config
from helpers.records import noisy, record
from helpers.refusals import refused
from helpers.scores import score_translations, translation_config

from t2t_flax.__main__ import main
from t2t_flax.config.schema import HIGHER_IS_BETTER
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.splits import split_source
from t2t_flax.registry import TASKS
from t2t_flax.tasks import lower_is_better, task_of
from t2t_flax.tasks.translation import METRICS
from t2t_flax.training.losses import TOKEN_METRICS


@pytest.fixture
def metrics(monkeypatch):
    """Imports the example of a metric, and restores the table afterwards."""
    before = list(METRICS)
    yield lambda: documented_modules.use(
        documented_modules.EXAMPLES / "missing_words.py", monkeypatch
    )
    METRICS[:] = before


def test_new_metric_is_in_records_training_and_comparisons(metrics, tmp_path):
    with refused("'missing_words'"):
        lower_is_better("missing_words")
    metrics()
    references = [f"a sentence of eight words is number {i} here" for i in range(50)]
    entry = score_translations(noisy(references, 0.2, 1), [references], samples=50)["missing_words"]
    assert 10 < entry["score"] < 30 and entry["how"] == "missing words"
    assert entry["confidence"]["low"] < entry["score"] < entry["confidence"]["high"]
    config = small_config(
        data=dict(test="toy:test", valid="toy:valid"),
        eval=dict(metric="missing_words", decode_every_steps=5),
    )
    task = task_of(config)
    assert [metric.name for metric in task.validation_metrics()] == ["sacrebleu", "missing_words"]
    scores = score_translations(references, [references]) | {"perplexity": 1.0}
    assert any(
        "missing words" in line and "lower is better" in line for line in task.summary(scores)
    )
    assert lower_is_better("valid_missing_words") and lower_is_better("newstest:missing_words")
    better, worse = (
        record(tmp_path, n, noisy(references, s, 1), references)
        for n, s in (("a", 0.1), ("b", 0.4))
    )
    comparing = pytest.importorskip("t2t_flax.extensions.sweeps.compare")
    comparison = comparing.compare(better, worse, score="missing_words")
    assert (
        comparison["difference"] < 0
        and comparison["p_value"] < 0.05
        and comparison["method"] == "missing words"
    )


def test_new_task_prepares_and_scores(monkeypatch, tmp_path):
    config = small_config(
        data=dict(task="sort_digits", train="digits:50:1", test="digits:5:2", joint_vocabulary=True)
    )
    with refused("data.task", "'sort_digits'", "translation"):
        task_of(config)
    documented_modules.use(documented_modules.EXAMPLES / "sort_digits.py", monkeypatch)
    task = task_of(config)
    assert prepare_corpus(task, tmp_path).train.num_pairs == 50
    source, target = next(split_source(task, "test").pairs())
    assert sorted(source.split()) == target.split()
    with refused("eval.metric", "'bleu'", "sort_digits"):
        task_of(
            small_config(data=dict(task="sort_digits"), eval=dict(metric="bleu"))
        ).validate_config()


@pytest.mark.slow
def test_new_task_trains_to_a_record(monkeypatch, tmp_path):
    documented_modules.use(documented_modules.EXAMPLES / "sort_digits.py", monkeypatch)
    run = tmp_path / "run"
    keys = {
        "data.task": "sort_digits", "data.train": "digits:2000:1", "data.valid": "", "data.test": "digits:20:2",
        "train.steps": 4, "model.d_model": 32, "model.d_ff": 64, "model.num_heads": 2, "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1, "decode.max_length_offset": 4, "eval.every_steps": 0, "mesh.cpu_devices": 1,
        "eval.decode_every_steps": 0, "checkpoint.average_last": 0,
    }  # fmt: skip
    words = [f"--config.{key}={value}" for key, value in keys.items()]
    assert main(["train", "--config=configs/toy.py", f"--workdir={run}", *words]) == 0
    assert "exact_match" in json.loads((run / "eval" / "test-4.json").read_text())["scores"]


def test_token_metrics_have_a_direction():
    assert set(TOKEN_METRICS) <= set(HIGHER_IS_BETTER)
    for name, higher_is_better in HIGHER_IS_BETTER.items():
        config = small_config(data=dict(valid="toy:valid"), eval=dict(metric=name, every_steps=5))
        assert task_of(config) and lower_is_better(f"valid_{name}") != higher_is_better


def test_metrics_of_all_tasks_agree_on_directions():
    """`lower_is_better` needs only the name of a metric."""
    directions = {}
    for name in TASKS:
        for metric in TASKS.load(name).metrics:
            assert (
                directions.setdefault(metric.name, metric.higher_is_better)
                == metric.higher_is_better
            )
            assert bool(metric.compute) != bool(metric.statistics)
    assert task_of(translation_config()).metrics[0].name == "sacrebleu"
