"""Scores of studies: AlgoPerf's published runs, trials that never reach the target, and the command."""

import json
import math
import random
import shutil

import pytest

from t2t_flax import config as config_lib
from t2t_flax.errors import UserError
from t2t_flax.extensions.algoperf import command
from t2t_flax.extensions.algoperf.hook import FILE
from t2t_flax.extensions.algoperf.studies import Trial, read_trials, scores
from t2t_flax.registry import load_extensions

load_extensions()
# Seconds to 30.8491 validation BLEU of the NAdamW baseline in five studies; mlcommons/algorithmic-efficiency at 2c90454,
# algorithms/baselines/logs/external_tuning/baseline/study_*/wmt_jax. None: not reached.
PUBLISHED = (
    (44561.004, 44550.064, 41188.847, 43711.809, 42032.952),
    (39521.200, None, 42030.961, 47003.918, 36154.704),
    (41200.160, 40351.634, 39509.977, 43710.571, 44556.066),
    (43722.289, None, 42033.184, 46234.100, 42873.953),
    (41207.078, None, 41191.298, 42030.924, 42034.722),
)


def trials_of(algorithm: str, studies) -> list[Trial]:
    return [
        Trial(
            algorithm,
            study,
            f"{study} {n}",
            ("bleu", 30.8491),
            seconds and {"seconds": seconds, "update": 7 * n, "target_tokens": 9},
        )
        for study, times in enumerate(studies, 1)
        for n, seconds in enumerate(times, 1)
    ]


def test_score_of_the_published_baseline():
    """By hand: the fastest of each study, and of these the third."""
    trials = trials_of("nadamw", PUBLISHED)
    random.Random(0).shuffle(trials)
    (found,) = scores(trials, "seconds")
    assert list(found.studies.values()) == [41188.847, 36154.704, 39509.977, 42033.184, 41191.298]
    assert (found.score, found.reached, found.trials) == (41188.847, 22, 25)


def test_algorithms_are_ranked_and_one_that_misses_most_studies_has_no_score():
    slow = [[2 * t for t in times if t] for times in PUBLISHED]
    misses = [(None,), (None,), (10.0,), (None,), (20.0,)]
    found = scores(trials_of("misses", misses) + trials_of("slow", slow) + trials_of("nadamw", PUBLISHED), "seconds")
    assert [score.algorithm for score in found] == ["nadamw", "slow", "misses"]
    assert [score.ratio for score in found] == [1.0, 2.0, math.inf] and found[2].score == math.inf
    (none,) = scores(trials_of("misses", misses), "seconds")
    assert math.isnan(none.ratio)


@pytest.fixture
def sweep(tmp_path):
    """Two studies of two trials of two optimizers; of adam one trial came too late, and another has not ended."""

    def write(name, optimizer, study, reached, *, bleu=None):
        workdir = tmp_path / "trials" / name
        (workdir / "eval").mkdir(parents=True)
        keys = {"target": "30", "test_target": "28", "max_seconds": "100", "study": str(study)}
        overrides = {"optimizer.name": optimizer, "eval.metric": "bleu"} | {f"algoperf.{k}": v for k, v in keys.items()}
        config = config_lib.load_config("toy", overrides)
        (workdir / "config.json").write_text(config_lib.to_json(config))
        found = reached and {"seconds": reached, "update": 10 * reached, "target_tokens": 100 * reached}
        (workdir / FILE).write_text(json.dumps({"reached": found}))
        if bleu is not None:
            (workdir / "eval" / "test-5.json").write_text(json.dumps({"scores": {"sacrebleu": {"score": bleu}}}))
            (workdir / "complete.json").write_text(json.dumps({"records": {"test": "test-5.json"}}))

    write("a", "adam", 1, 50, bleu=28.0)
    write("b", "adam", 1, 101, bleu=29.0)
    write("c", "adam", 2, None, bleu=27.0)
    write("d", "adam", 2, 70)
    write("e", "nadamw", 1, 40, bleu=1.0)
    write("f", "nadamw", 2, 44, bleu=30.0)
    return tmp_path


@pytest.mark.smoke
def test_command_reads_a_sweep(sweep, capsys):
    assert command.run([str(sweep), "--by=updates"]) == 0
    out = capsys.readouterr().out
    rows = [line.split("  ") for line in out.splitlines()]
    assert "updates to bleu 30 of the validation set" in out and "1 trials have not ended" in out
    cells = [[cell.strip() for cell in row if cell] for row in rows if row[0] in ("adam", "nadamw")]
    assert cells == [
        ["nadamw", "420", "1.00", "400", "440", "2 of 2", "1 of 2"],
        ["adam", "600", "1.43", "500", "700", "2 of 4", "2 of 4"],
    ]
    command.run([str(sweep), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [score["score"] for score in found["scores"]] == [42, 60] and found["by"] == "seconds"
    assert [trial["reached"] and trial["reached"]["update"] for trial in found["trials"]] == [
        500,
        None,
        None,
        700,
        400,
        440,
    ]


def test_trials_that_have_not_started_are_named(sweep, capsys):
    (sweep / "trials" / "g").mkdir()
    command.run([str(sweep)])
    assert "left out, not started: g" in capsys.readouterr().out
    for trial in "abcdef":
        shutil.rmtree(sweep / "trials" / trial)
    with pytest.raises(UserError, match="no trial has started"):
        read_trials([str(sweep)])


def test_optimizers_with_trials_of_different_studies_are_named(sweep, capsys):
    command.run([str(sweep)])
    assert "different studies" not in capsys.readouterr().out
    shutil.rmtree(sweep / "trials" / "f")
    command.run([str(sweep)])
    assert "different studies (nadamw: 1; adam: 1, 2)" in capsys.readouterr().out


def test_folders_that_cannot_be_scored_are_refused(sweep, tmp_path):
    other = sweep / "trials" / "a" / "config.json"
    other.write_text(other.read_text().replace('"target": 30.0', '"target": 31.0'))
    with pytest.raises(UserError, match=r"a has the target bleu 31.0, b bleu 30.0"):
        read_trials([str(sweep)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty is no run with config.algoperf.target"):
        read_trials([str(tmp_path / "empty")])
    (sweep / "trials" / "a" / FILE).write_text("{")
    with pytest.raises(UserError, match="trials/a cannot be used"):
        read_trials([str(sweep / "trials" / "a")])
