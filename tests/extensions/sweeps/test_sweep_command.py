"""The `sweep` command: its listing, its checks and its exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from t2t_flax import config as config_lib
from t2t_flax.__main__ import main
from t2t_flax.errors import STOPPED, UserError
from t2t_flax.extensions.sweeps.folder import read_sweep
from t2t_flax.extensions.sweeps.trials import expand
from t2t_flax.extensions.sweeps.worker import Worker

ROOT = Path(__file__).parents[3]
TOY = str(ROOT / "configs" / "toy.py")


def sweep(*arguments: str) -> int:
    return main(["sweep", *arguments])


@pytest.fixture
def no_training(monkeypatch) -> list[Worker]:
    """Records the workers that would have been started."""
    workers = []
    monkeypatch.setattr(Worker, "run", lambda worker: workers.append(worker))
    return workers


@pytest.mark.smoke
def test_dry_run_lists_trials_and_writes_nothing(tmp_path, capsys):
    arguments = ["--set", "model.dropout=0.1,0.2", "--set", "data.valid=a.en,a.de;b.en,b.de", "--seeds=2", "--dry-run"]
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/s", *arguments) == 0
    out = capsys.readouterr().out
    assert "8 trials of" in out and "dropout=0.2,valid=b.en,b.de,seed=1" in out and "seed.init=1" in out
    assert not (tmp_path / "s").exists()


def test_the_process_of_the_sweep_needs_no_jax():
    """Which its trainings use: it may hold a device."""
    code = "import sys, t2t_flax.extensions.sweeps.command; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300)


@pytest.mark.parametrize("arguments, message", [
    (["--set", "model.dropoutt=1"], "unknown config key 'model.dropoutt'"),
    (["--set", "model.dropout=x"], "expected float"),
    (["--set", "model.dropout"], "expected --set GROUP.KEY=VALUE,VALUE"),
    (["--set", "model.dropout=0.1,0.1"], "both named"),
    (["--set", "name=a,b"], "expected --set GROUP.KEY"),
    (["--retries=-1"], "must be at least 0"),
    (["--stack=0"], "must be at least 1"),
    (["--score=rouge"], "there is no score 'rouge'"),
    (["--score=paper_bleu", "--config.data.target_language=zh"], "there is no score 'paper_bleu'"),
    (["--score=valid_bleu"], "needs config.eval.decode_every_steps"),
    (["--config.data.test=", "--score=sacrebleu"], "config.data.test is empty"),
    (["--report", "--seeds=2"], "leave out --config, --seeds"),
    (["--seeds=0"], "--seeds: must be at least 1"),
    (["--set", "model.dropout=0.1", "--baseline=dropout=0.3"], "is not a row of the sweep: dropout=0.1"),
    (["--set", "model.dropout=0.1", "--parallel=999"], "needs one core per trial"),
])  # fmt: skip
def test_user_errors_are_reported_without_traceback(tmp_path, capsys, arguments, message):
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/s", *arguments) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "s").exists()


@pytest.mark.parametrize("text, message", [
    ("x = 1", "does not define get_sweep"),
    ("def get_sweep():\n  return 3", "returned int, expected a Sweep"),
    ("def get_sweep(:", "line 1"),
    ("import nothing_of_this_name", "line 1: ModuleNotFoundError"),
    ("def get_sweep():\n  return int('x')", "line 2: ValueError"),
    ("from t2t_flax.extensions.sweeps.space import *\ndef get_sweep(): return Sweep(over('a.b', [1]), config='x', search=1)", "rows or a search"),
    ("from t2t_flax.extensions.sweeps.space import *\ndef get_sweep(): return Sweep([over('model.dropout', [0.1])], config='configs/toy.py')", "expected a dict of overrides whose name, if it has one, is text: join the lists"),
    ("from t2t_flax.extensions.sweeps.space import *\ndef get_sweep(): return Sweep(rows=over('model.dropout', [0.1]))", "has no config"),
    ("from t2t_flax.extensions.sweeps.space import *\ndef get_sweep(): return Sweep(search=Search({'a.b': choice(1, 2)}, 3))", "missing 1 required positional argument: 'metric'"),
])  # fmt: skip
def test_invalid_sweep_file_is_rejected(tmp_path, capsys, text, message):
    (tmp_path / "s.py").write_text(text)
    assert sweep(f"--sweep={tmp_path}/s.py", f"--workdir={tmp_path}/s") == 2
    assert message in capsys.readouterr().err


def test_search_over_unknown_key_is_rejected(tmp_path, capsys):
    pytest.importorskip("optuna")
    (tmp_path / "s.py").write_text(
        "from t2t_flax.extensions.sweeps.space import *\n"
        "def get_sweep(): return Sweep(search=Search({'model.width': choice(1, 2)}, 3, 'valid_nll', method='tpe'))"
    )
    assert sweep(f"--sweep={tmp_path}/s.py", f"--config={TOY}", f"--workdir={tmp_path}/s") == 2
    assert "unknown config key 'model.width'" in capsys.readouterr().err and not (tmp_path / "s").exists()


@pytest.mark.parametrize("overrides, score", [
    ({}, "valid_nll"),
    ({"eval.metric": "accuracy"}, "valid_accuracy"),
    ({"eval.metric": "bleu", "eval.decode_every_steps": "100"}, "valid_bleu"),
    ({"train.steps": "90", "eval.every_steps": "100"}, "sacrebleu"),  # no evaluation
    ({"data.valid": "", "checkpoint.keep_best": "0"}, "sacrebleu"),
    ({"data.test": ""}, "valid_nll"),
])  # fmt: skip
def test_default_score_is_one_of_the_validation_set(overrides, score):
    from t2t_flax.config import load_config
    from t2t_flax.extensions.sweeps.results import default_score

    assert default_score(load_config(TOY, overrides)) == score


def test_existing_sweep_must_match_settings_and_code(tmp_path, capsys, no_training):
    arguments = [f"--config={TOY}", f"--workdir={tmp_path}/s", "--set"]
    assert sweep(*arguments, "model.dropout=0.1,0.2") == 0
    content = (tmp_path / "s" / "sweep.json").read_text()
    table = (tmp_path / "s" / "report" / "table.csv").stat().st_mtime_ns
    assert sweep(f"--workdir={tmp_path}/s", "--report", "--score=valid_blue") == 2
    assert "there is no score 'valid_blue'" in capsys.readouterr().err
    assert (tmp_path / "s" / "report" / "table.csv").stat().st_mtime_ns == table
    (tmp_path / "file").touch()
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/file") == 2 and "is a file" in capsys.readouterr().err
    assert sweep(f"--workdir={tmp_path}/file", "--report") == 2 and "has no sweep.json" in capsys.readouterr().err
    assert sweep(*arguments, "model.dropout=0.1,0.2", "--dry-run") == 0
    assert sweep(*arguments, "model.dropout=0.1,0.3", "--dry-run") == 2
    assert "only in the folder: dropout=0.2,seed=0" in capsys.readouterr().err
    assert sweep(*arguments, "model.dropout=0.1,0.2", "--config.train.steps=9") == 2
    assert "trial dropout=0.1,seed=0: train.steps: 1800 in the folder, 9 now" in capsys.readouterr().err
    assert sweep(f"--workdir={tmp_path}/s") == 0
    stored = json.loads(content)
    (tmp_path / "s" / "sweep.json").write_text(json.dumps(stored | {"code": {"version": "0", "digest": "0" * 16}}))
    assert sweep(f"--workdir={tmp_path}/s") == 2 and "--any-code" in capsys.readouterr().err
    assert sweep(f"--workdir={tmp_path}/s", "--any-code") == 0
    assert sweep(*arguments, "model.dropout=0.1,0.2", "--any-code") == 0
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["code"]["version"] == "0"  # of its creation


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": {}}', '{"letters": 1}'])
def test_invalid_config_json_is_rejected(tmp_path, capsys, text):
    (tmp_path / "c.json").write_text(text)
    assert sweep(f"--config={tmp_path}/c.json", f"--workdir={tmp_path}/s") == 2
    err = capsys.readouterr().err
    assert "c.json: this is not" in err and not (tmp_path / "s").exists()


@pytest.mark.parametrize("changes, message", [
    ([{}], "1 configs and 2 workdirs"),
    ([{}, {"model.d_ff": "64"}], "differ in more than scalars: model.d_ff"),
    ([{"mesh.data": "2"}, {"mesh.data": "2"}], "must fit on one device: leave config.mesh"),
    ([{"model.attention_kernel": "auto"}] * 2, "cuDNN's attention cannot be vectorized"),
])  # fmt: skip
def test_runs_that_cannot_be_stacked_are_rejected(tmp_path, changes, message):
    from t2t_flax import config as config_lib
    from t2t_flax.extensions.sweeps import stacked_runs

    arguments = []
    for i, keys in enumerate(changes):
        path = tmp_path / f"{i}.json"
        path.write_text(config_lib.to_json(config_lib.load_config(TOY, keys)))
        arguments += [f"--config={path}"]
    with pytest.raises(UserError, match=message):
        stacked_runs.run([*arguments, f"--workdir={tmp_path}/a", f"--workdir={tmp_path}/b"])
    assert not (tmp_path / "a").exists()


def test_user_errors_of_a_joining_worker_are_reported_before_training(tmp_path, capsys, monkeypatch, no_training):
    (tmp_path / "s.py").write_text(
        "from t2t_flax.extensions.sweeps.space import *\n"
        "def get_sweep(): return Sweep(concat(named('more dropout', {'model.dropout': 0.2}), named('base')), baseline='more dropout')"
    )
    workdir_flag = f"--workdir={tmp_path}/s"
    assert sweep(workdir_flag, f"--sweep={tmp_path}/s.py", f"--config={TOY}") == 0 and len(no_training) == 1
    assert read_sweep(tmp_path / "s")["baseline"] == "more_dropout"
    assert (
        sweep(workdir_flag, "--baseline=nope") == 2
        and "is not a row of the sweep: more_dropout, base" in capsys.readouterr().err
    )
    assert sweep(workdir_flag, "--score=rouge") == 2 and "there is no score 'rouge'" in capsys.readouterr().err
    assert len(no_training) == 1 and sweep(workdir_flag, "--baseline=more dropout") == 0


def test_joining_where_the_folder_of_creation_is_missing_is_refused(tmp_path, capsys, no_training):
    """Relative paths would name other files."""
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/s") == 0
    file = tmp_path / "s" / "sweep.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"cwd": "/no/such/folder"}))
    assert sweep(f"--workdir={tmp_path}/s") == 2 and len(no_training) == 1
    assert "created in /no/such/folder" in capsys.readouterr().err


def test_config_need_not_be_valid_without_the_rows_overrides(tmp_path):
    """peak_lr is invalid with the preset's noam schedule, which no row uses."""
    arguments = [
        "--config=aiayn_base",
        "--config.optimizer.peak_lr=1e-3",
        "--set",
        "optimizer.schedule=inverse_sqrt,constant",
    ]
    assert sweep(*arguments, f"--workdir={tmp_path}/s", "--dry-run") == 0


def test_table3_sweep_has_the_presets_and_the_papers_ratios():
    from t2t_flax.extensions.recipes.presets import TABLE3_ROWS

    file = str(ROOT / "configs" / "sweeps" / "table3.py")
    table3 = config_lib.from_python_file("--sweep", file, "get_sweep", "")
    for trial in expand(table3.config, {}, table3.rows, table3.seeds):
        assert trial.config == config_lib.load_config(f"table3_{trial.row}"), trial.row
    assert len(table3.rows) == len(TABLE3_ROWS) == 20
    small = config_lib.from_python_file("--sweep", f"{file}:multi30k", "get_sweep", "")
    trials = {t.row: t.config.model for t in expand(str(ROOT / small.config), {}, small.rows, 1)}
    paper = {t.row: t.config.model for t in expand(table3.config, {}, table3.rows, 1)}
    for row, model in trials.items():
        for key in ("d_model", "d_ff"):
            assert getattr(model, key) * 8 == getattr(paper[row], key), row
        for key in ("d_k", "d_v"):
            width = lambda m, key=key: getattr(m, key) or m.d_model // m.num_heads  # noqa: E731
            assert width(model) * 8 == width(paper[row]), row
        assert model.num_heads == paper[row].num_heads
        for key in ("num_encoder_layers", "num_decoder_layers"):
            assert getattr(model, key) * 2 == getattr(paper[row], key), row


def test_foreign_folder_and_bucket_are_rejected(tmp_path, capsys):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a").touch()
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/letters") == 2
    assert "is not empty and holds no sweep" in capsys.readouterr().err
    assert sweep(f"--workdir={tmp_path}/letters") == 2
    assert "has no sweep.json" in capsys.readouterr().err
    assert sweep(f"--config={TOY}", "--workdir=gs://bucket/sweep") == 2
    assert "not an object store" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_writes_no_report(tmp_path, capsys, monkeypatch, number):
    """A scheduler may kill the process before a long report is written."""

    def run(worker):
        os.kill(os.getpid(), number)
        assert worker.stop.wait(200)

    monkeypatch.setattr(Worker, "run", run)
    before = signal.getsignal(number)
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/s") == STOPPED
    assert "stopped, everything saved; run the same command again" in capsys.readouterr().out
    assert not (tmp_path / "s" / "report").exists() and signal.getsignal(number) == before
