"""The `sweep` command: what it lists and what it refuses."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from t2t_flax.__main__ import main
from t2t_flax.cli import sweep as sweep_command
from t2t_flax.errors import STOPPED, UserError
from t2t_flax.sweeps.folder import Folder, read_sweep

ROOT = Path(__file__).parents[2]
TOY = str(ROOT / "configs" / "toy.py")


def sweep(*words: str) -> int:
    return main(["sweep", *words])


def test_a_dry_run_lists_the_trials_and_writes_nothing(tmp_path, capsys):
    words = ["--set", "model.dropout=0.1,0.2", "--set", "log.profile_steps=(0,0);(2,3)", "--seeds=2", "--dry-run"]
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/s", *words) == 0
    out = capsys.readouterr().out
    assert "8 trials of" in out and "dropout=0.2,profile_steps=(2,3),seed=1" in out and "seed.init=1" in out
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("words, told", [
    (["--set", "model.dropoutt=1"], "unknown config key 'model.dropoutt'"),
    (["--set", "model.dropout=x"], "expected float"),
    (["--set", "model.dropout"], "write --set GROUP.KEY=VALUE,VALUE"),
    (["--set", "model.dropout=0.1,0.1"], "both named"),
    (["--set", "name=a,b"], "write --set GROUP.KEY"),
    (["--retries=-1"], "must be at least 0"),
    (["--stack=0"], "must be at least 1"),
    (["--score=rouge"], "there is no score 'rouge'"),
    (["--score=paper_bleu", "--config.data.target_language=zh"], "there is no score 'paper_bleu'"),
    (["--score=valid_bleu"], "needs config.eval.decode_every_steps"),
    (["--config.data.test=", "--score=sacrebleu"], "config.data.test is empty"),
    (["--report", "--seeds=2"], "leave out --config, --seeds"),
    (["--seeds=0"], "--seeds: must be at least 1"),
    (["--set", "model.dropout=0.1", "--baseline=dropout=0.3"], "is no row of the sweep: dropout=0.1"),
    (["--set", "model.dropout=0.1", "--jobs=999"], "needs a core for each"),
    (["--slurm", "x=1"], "give --submit=N too"),
    (["--slurm", "x", "--submit=1"], "write --slurm OPTION=VALUE"),
])  # fmt: skip
def test_mistakes_are_told_without_a_traceback(tmp_path, capsys, monkeypatch, words, told):
    monkeypatch.setitem(sys.modules, "submitit", None)  # a mistake is named with or without it
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/s", *words) == 2
    assert told in capsys.readouterr().err and not (tmp_path / "s").exists()


@pytest.mark.parametrize("text, told", [
    ("x = 1", "defines no get_sweep"),
    ("def get_sweep():\n  return 3", "returned int, expected a Sweep"),
    ("def get_sweep(:", "line 1"),
    ("import nothing_of_this_name", "line 1: ModuleNotFoundError"),
    ("def get_sweep():\n  return int('x')", "line 2: ValueError"),
    ("from t2t_flax.sweeps.space import *\ndef get_sweep(): return Sweep(over('a.b', [1]), config='x', search=1)", "rows or a search"),
    ("from t2t_flax.sweeps.space import *\ndef get_sweep(): return Sweep([over('model.dropout', [0.1])], config='configs/toy.py')", "row 0 of the sweep is a list, expected a dict of overrides: join the lists"),
    ("from t2t_flax.sweeps.space import *\ndef get_sweep(): return Sweep(rows=over('model.dropout', [0.1]))", "names no config"),
    ("from t2t_flax.sweeps.space import *\ndef get_sweep(): return Sweep(search=Search({'a.b': choice(1, 2)}, 3))", "no metric"),
])  # fmt: skip
def test_a_sweep_file_without_a_sweep_is_refused(tmp_path, capsys, text, told):
    (tmp_path / "s.py").write_text(text)
    assert sweep(f"--sweep={tmp_path}/s.py", f"--workdir={tmp_path}/s") == 2
    assert told in capsys.readouterr().err


def test_a_search_over_an_unknown_key_is_refused_before_it_proposes(tmp_path, capsys):
    pytest.importorskip("optuna")
    (tmp_path / "s.py").write_text(
        "from t2t_flax.sweeps.space import *\n"
        "def get_sweep(): return Sweep(search=Search({'model.width': choice(1, 2)}, 3, 'valid_nll', method='tpe'))"
    )
    assert sweep(f"--sweep={tmp_path}/s.py", f"--config={TOY}", f"--workdir={tmp_path}/s") == 2
    assert "unknown config key 'model.width'" in capsys.readouterr().err and not (tmp_path / "s").exists()


def test_the_score_follows_from_the_task(tmp_path, capsys):
    from t2t_flax.config import load_config
    from t2t_flax.sweeps.scores import default_score

    assert default_score(load_config(str(ROOT / "configs" / "parsing.py"))) == "f1"
    assert (
        default_score(load_config(TOY)) == "sacrebleu"
        and default_score(load_config(TOY, {"data.test": ""})) == "valid_nll"
    )


def test_a_dry_run_looks_at_the_folder_and_joining_looks_at_the_code(tmp_path, capsys, monkeypatch):
    """Nothing trains here: the worker is told to."""
    monkeypatch.setattr("t2t_flax.cli.sweep.work", lambda *words, **more: None)
    words = [f"--config={TOY}", f"--workdir={tmp_path}/s", "--set"]
    assert sweep(*words, "model.dropout=0.1,0.2") == 0
    content = (tmp_path / "s" / "sweep.json").read_text()
    table = (tmp_path / "s" / "report" / "table.csv").stat().st_mtime_ns
    assert sweep(f"--workdir={tmp_path}/s", "--report", "--score=valid_blue") == 2
    assert "there is no score 'valid_blue'" in capsys.readouterr().err
    assert (tmp_path / "s" / "report" / "table.csv").stat().st_mtime_ns == table
    (tmp_path / "file").touch()
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/file") == 2 and "is a file" in capsys.readouterr().err
    assert sweep(f"--workdir={tmp_path}/file", "--report") == 2 and "holds no sweep" in capsys.readouterr().err
    assert sweep(*words, "model.dropout=0.1,0.2", "--dry-run") == 0
    assert sweep(*words, "model.dropout=0.1,0.3", "--dry-run") == 2
    assert "only in the folder: dropout=0.2,seed=0" in capsys.readouterr().err
    assert sweep(*words, "model.dropout=0.1,0.2", "--config.train.steps=9") == 2
    assert "fixed: {} in the folder, {'train.steps': '9'} now" in capsys.readouterr().err
    assert sweep(f"--workdir={tmp_path}/s") == 0
    stored = json.loads(content)
    (tmp_path / "s" / "sweep.json").write_text(json.dumps(stored | {"code": {"version": "0", "digest": "0" * 16}}))
    assert sweep(f"--workdir={tmp_path}/s") == 2 and "--any-code" in capsys.readouterr().err
    assert sweep(f"--workdir={tmp_path}/s", "--any-code") == 0
    assert sweep(*words, "model.dropout=0.1,0.2", "--any-code") == 0
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["code"]["version"] == "0"  # what it was made by


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": {}}', '{"letters": 1}'])
def test_a_config_json_of_no_run_is_refused(tmp_path, capsys, text):
    (tmp_path / "c.json").write_text(text)
    assert sweep(f"--config={tmp_path}/c.json", f"--workdir={tmp_path}/s") == 2
    said = capsys.readouterr().err
    assert "c.json: the stored config" in said and "config.json" in said and not (tmp_path / "s").exists()


def test_a_missing_submitit_is_told_before_anything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/s", "--submit=1") == 2
    assert (
        "--submit needs submitit: pip install -e '.[sweep]'" in capsys.readouterr().err
        and not (tmp_path / "s").exists()
    )


@pytest.mark.parametrize("changes, told", [
    ([{}], "1 configs and 2 workdirs"),
    ([{}, {"model.d_ff": "64"}], "differ in more than scalars: model.d_ff"),
    ([{"mesh.data": "2"}, {"mesh.data": "2"}], "must fit on one device: leave config.mesh"),
    ([{"log.profile_steps": "(1,2)"}, {"log.profile_steps": "(1,2)"}], "leave config.log.profile_steps"),
])  # fmt: skip
def test_runs_that_cannot_train_together_are_refused(tmp_path, changes, told):
    from t2t_flax import config as config_lib
    from t2t_flax.cli import train_together

    words = []
    for i, keys in enumerate(changes):
        path = tmp_path / f"{i}.json"
        path.write_text(config_lib.to_json(config_lib.load_config(TOY, keys)))
        words += [f"--config={path}"]
    with pytest.raises(UserError, match=told):
        train_together.run([*words, f"--workdir={tmp_path}/a", f"--workdir={tmp_path}/b"])
    assert not (tmp_path / "a").exists()


def test_a_worker_that_joins_is_told_of_mistakes_before_it_trains(tmp_path, capsys, monkeypatch):
    begun = []
    monkeypatch.setattr("t2t_flax.cli.sweep.work", lambda *words, **more: begun.append(words))
    (tmp_path / "s.py").write_text(
        "from t2t_flax.sweeps.space import *\n"
        "def get_sweep(): return Sweep(chain(named('more dropout', {'model.dropout': 0.2}), named('base')), baseline='more dropout')"
    )
    here = f"--workdir={tmp_path}/s"
    assert sweep(here, f"--sweep={tmp_path}/s.py", f"--config={TOY}") == 0 and len(begun) == 1
    assert read_sweep(tmp_path / "s")["baseline"] == "more_dropout"
    assert (
        sweep(here, "--baseline=nope") == 2 and "is no row of the sweep: more_dropout, base" in capsys.readouterr().err
    )
    assert sweep(here, "--score=rouge") == 2 and "there is no score 'rouge'" in capsys.readouterr().err
    assert len(begun) == 1 and sweep(here, "--baseline=more dropout") == 0
    monkeypatch.setenv("T2T_NUM_PROCESSES", "2")
    monkeypatch.setenv("T2T_PROCESS_ID", "1")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:1")
    assert sweep(here) == 2 and "sweep runs as one process" in capsys.readouterr().err and len(begun) == 2


def test_given_up_trials_are_opened_before_workers_are_submitted(tmp_path, monkeypatch):
    submitted = []
    monkeypatch.setattr("t2t_flax.cli.sweep.work", lambda *words, **more: None)
    monkeypatch.setattr("t2t_flax.cli.sweep.submit", lambda folder, worker, *words: submitted.append(worker) or ["1"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    words = [f"--config={TOY}", f"--workdir={tmp_path}/s"]
    assert sweep(*words) == 0
    folder = Folder(tmp_path / "s")
    folder.note("base,seed=0", event="given up")
    assert sweep(*words, "--submit=1", "--retry-failed", "--score=chrf") == 0
    assert folder.state("base,seed=0") == "waiting" and "--score=chrf" in submitted[0]


def test_rows_need_not_be_possible_without_their_overrides(tmp_path, capsys):
    """peak_lr is refused with the noam schedule of the preset, which no row has."""
    words = [
        "--config=aiayn_base",
        "--config.optimizer.peak_lr=1e-3",
        "--set",
        "optimizer.schedule=inverse_sqrt,constant",
    ]
    assert sweep(*words, f"--workdir={tmp_path}/s", "--dry-run") == 0


def test_the_sweep_of_table_3_has_the_presets_and_the_papers_ratios(tmp_path):
    from t2t_flax import config as config_lib
    from t2t_flax.config.presets import TABLE3_ROWS
    from t2t_flax.sweeps.trials import expand

    file = str(ROOT / "configs" / "sweeps" / "table3.py")
    whole = config_lib.from_python_file("--sweep", file, "get_sweep", "")
    for trial in expand(whole.config, {}, whole.rows, whole.seeds):
        assert trial.config == config_lib.load_config(f"table3_{trial.row}"), trial.row
    assert len(whole.rows) == len(TABLE3_ROWS) == 20
    small = config_lib.from_python_file("--sweep", f"{file}:multi30k", "get_sweep", "")
    trials = {t.row: t.config.model for t in expand(str(ROOT / small.config), {}, small.rows, 1)}
    paper = {t.row: t.config.model for t in expand(whole.config, {}, whole.rows, 1)}
    for row, model in trials.items():
        for key in ("d_model", "d_ff"):
            assert getattr(model, key) * 8 == getattr(paper[row], key), row
        for key in ("d_k", "d_v"):
            width = lambda m, key=key: getattr(m, key) or m.d_model // m.num_heads  # noqa: E731
            assert width(model) * 8 == width(paper[row]), row
        assert model.num_heads == paper[row].num_heads
        for key in ("num_encoder_layers", "num_decoder_layers"):
            assert getattr(model, key) * 2 == getattr(paper[row], key), row


def test_a_folder_that_is_no_sweep_and_a_bucket_are_refused(tmp_path, capsys):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a").touch()
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/letters") == 2
    assert "no sweep and not empty" in capsys.readouterr().err
    assert sweep(f"--workdir={tmp_path}/letters") == 2
    assert "holds no sweep" in capsys.readouterr().err
    assert sweep(f"--config={TOY}", "--workdir=gs://bucket/sweep") == 2
    assert "not in an object store" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_does_not_wait_for_the_report(tmp_path, capsys, monkeypatch, number):
    """Whoever stops a job kills it soon after: the report, which may take long, is left to the next start."""

    def work(folder, queue, shares, *, stop, **more):
        os.kill(os.getpid(), number)
        assert stop.wait(10)

    monkeypatch.setattr(sweep_command, "work", work)
    before = signal.getsignal(number)
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/s") == STOPPED
    assert "stopped, everything saved; give the same command again" in capsys.readouterr().out
    assert not (tmp_path / "s" / "report").exists() and signal.getsignal(number) == before
