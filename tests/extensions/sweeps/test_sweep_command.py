"""The `sweep` command: its listing, its refusals and exit codes.

The files in configs/sweeps; a real sweep.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.processes import environment, wait_for
from helpers.refusals import refused, refused_command
from stand_in import TOY

from t2t_flax import config as config_lib
from t2t_flax.__main__ import main
from t2t_flax.errors import OK, STOPPED, USER_ERROR
from t2t_flax.extensions.sweeps.folder import Folder, read_sweep
from t2t_flax.extensions.sweeps.resources import Resources, divide_machine
from t2t_flax.extensions.sweeps.trials import expand
from t2t_flax.extensions.sweeps.worker import Worker, training_command

ROOT = Path(__file__).parents[3]
IMPORTS = "from t2t_flax.extensions.sweeps.space import *\ndef get_sweep(): return "
SEARCH = f"{IMPORTS}Sweep(search=Search({{'model.dropout': uniform(0.0, 0.5)}}, 3, 'valid_nll'))"


def sweep(*arguments: str) -> int:
    return main(["sweep", *arguments])


@pytest.mark.smoke
def test_dry_run_lists_trials_and_writes_nothing(tmp_path, capsys):
    arguments = [
        "--set",
        "model.dropout=0.1,0.2",
        "--set",
        "data.valid=a.en,a.de;b.en,b.de",
        "--seeds=2",
        "--dry-run",
    ]
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/s", *arguments) == OK
    lines = [line for line in capsys.readouterr().out.splitlines() if "seed=" in line]
    assert (
        len(lines) == 8
        and "dropout=0.2,valid=b.en,b.de,seed=1" in lines[-1]
        and "seed.init=1" in lines[-1]
    )
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("steps, warns", [(100, True), (1800, False)])
def test_a_rank_by_the_test_set_is_said_before_trials_run(tmp_path, capsys, steps, warns):
    arguments = ["--set", "model.dropout=0.1,0.2", "--dry-run", f"--config.train.steps={steps}"]
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/s", *arguments) == OK
    assert ("config.eval.every_steps" in capsys.readouterr().out) == warns


def test_the_process_of_the_sweep_needs_no_jax():
    """Its trainings use it; the process may hold no device."""
    code = "import sys, t2t_flax.extensions.sweeps.command; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300)


@pytest.mark.parametrize("arguments, names", [
    (["--set", "model.dropoutt=1"], ["model.dropoutt"]), (["--set", "model.dropout=x"], ["model.dropout"]),
    (["--set", "model.dropout"], ["--set model.dropout"]), (["--set", "model.dropout=0.1,0.1"], ["dropout=0.1"]),
    (["--set", "name=a,b"], ["--set name=a,b"]), (["--retries=-1"], ["--retries"]), (["--seeds=0"], ["--seeds"]),
    (["--score=rouge"], ["rouge"]), (["--score=valid_bleu"], ["config.eval.decode_every_steps"]),
    (["--config.data.test=", "--score=sacrebleu"], ["config.data.test"]), (["--report", "--seeds=2"], ["--config,", "--seeds"]),
    (["--set", "model.dropout=0.1", "--baseline=dropout=0.3"], ["--baseline"]), (["--parallel=999"], ["--parallel=999"]),
    (["--storage=sqlite:///x.db"], ["--storage"]),
])  # fmt: skip
def test_invalid_flags_are_refused(tmp_path, arguments, names):
    refused_command(["sweep", f"--config={TOY}", f"--workdir={tmp_path}/s", *arguments], *names)
    assert not (tmp_path / "s").exists()


def test_a_refusal_is_shown_once_with_its_rows(tmp_path):
    command = [
        "sweep",
        f"--config={TOY}",
        f"--workdir={tmp_path}/s",
        "--set",
        "model.num_heads=3,2",
    ]
    command += ["--set", "model.dropout=0.1,0.2"]
    refused_command(command, "num_heads=3,dropout=0.1;", "num_heads=3,dropout=0.2:")
    of_all_rows = refused_command([*command, "--config.model.dropuot=1"], "model.dropuot")
    assert "num_heads" not in of_all_rows


@pytest.mark.parametrize("text, names", [
    ("x = 1", ["get_sweep"]), ("def get_sweep():\n  return 3", ["s.py", "int"]), ("def get_sweep(:", ["line 1"]),
    ("def get_sweep():\n  return int('x')", ["line 2"]), (f"{IMPORTS}Sweep([over('model.dropout', [0.1])], config='toy')", ["row 0"]),
    (f"{IMPORTS}Sweep(rows=over('model.dropout', [0.1]))", ["--config=FILE.py"]),
    (f"{IMPORTS}Sweep(search=Search({{'model.width': choice(1, 2)}}, 3, 'valid_nll'), config='toy')", ["model.width"]),
    (f"{IMPORTS}Sweep(search=Search({{'model.dropout': choice(0.1)}}, 3, 'valid_nll'), config='toy', seeds=2)", ["--seeds"]),
])  # fmt: skip
def test_invalid_sweep_files_are_refused(tmp_path, text, names):
    (tmp_path / "s.py").write_text(text)
    refused_command(["sweep", f"--sweep={tmp_path}/s.py", f"--workdir={tmp_path}/s"], *names)


@pytest.fixture
def workers(monkeypatch) -> list[Worker]:
    """The workers that would have been started."""
    made: list[Worker] = []
    monkeypatch.setattr(Worker, "run", lambda worker: made.append(worker))
    return made


def test_joining_workers_are_checked_before_they_train(tmp_path, workers):
    (tmp_path / "s.py").write_text(
        f"{IMPORTS}Sweep(concat(named('more dropout', {{'model.dropout': 0.2}}), named('base')))"
    )
    folder = f"--workdir={tmp_path}/s"
    assert (
        sweep(folder, f"--sweep={tmp_path}/s.py", f"--config={TOY}", "--baseline=more dropout")
        == USER_ERROR
    )
    assert read_sweep(tmp_path / "s")["baseline"] == "more_dropout" and len(workers) == 1
    for flag, name in (
        ("--baseline=nope", "more_dropout,"),
        ("--score=rouge", "rouge"),
        ("--seeds=2", "--seeds"),
    ):
        refused_command(["sweep", folder, flag], name)
    refused_command(["sweep", f"--workdir={tmp_path}"], "sweep.json")
    for foreign in (str(tmp_path), "gs://bucket/sweep"):
        refused_command(
            ["sweep", f"--config={TOY}", f"--workdir={foreign}"], f"--workdir={foreign}"
        )
    assert len(workers) == 1


@pytest.mark.parametrize(
    ("key", "value", "others"),
    [
        ("filters.scorer", "x.py:f", []),
        ("data.cache", "/elsewhere", []),
        ("data.root", "/elsewhere", ["--config.data.train=tfds:wmt14_translate/de-en:train"]),
    ],
)
def test_what_a_stored_config_cannot_name_is_given_by_the_command_of_the_sweep(
    tmp_path, workers, key, value, others
):
    folder, flag = f"--workdir={tmp_path}/s", f"--config.{key}={value}"
    assert sweep(folder, f"--config={TOY}", flag, *others) == USER_ERROR
    (name,) = read_sweep(tmp_path / "s")["trials"]
    assert flag in training_command(Folder(tmp_path / "s"), name, Resources())
    refused_command(["sweep", folder], f"config.{key}", "--config", "--sweep")
    assert len(workers) == 1


def test_rows_may_leave_fixed_keys_without_effect(tmp_path):
    """A row acts on what the flags have made; within a row a key without effect is refused."""
    fixed = {"loss.label_smoothing_over": "non_target"}
    rows = [{"loss.label_smoothing": 0.0}, {"loss.label_smoothing": 0.2}]
    configs = [trial.config.loss for trial in expand("toy", fixed, rows, 1)]
    assert [loss.label_smoothing_over for loss in configs] == ["all", "non_target"]
    with refused("loss.label_smoothing_over", "loss.label_smoothing"):
        expand(
            "toy", {}, [{"loss.label_smoothing": 0.0, "loss.label_smoothing_over": "non_target"}], 1
        )


@pytest.mark.parametrize("as_flag", [True, False])
def test_a_search_is_created_and_joined(tmp_path, workers, monkeypatch, as_flag):
    pytest.importorskip("optuna")
    (tmp_path / "s.py").write_text(SEARCH)
    folder, file = f"--workdir={tmp_path}/s", f"--sweep={tmp_path}/s.py"
    url = f"sqlite:///{tmp_path}/x.db"
    if not as_flag:
        monkeypatch.setenv("T2T_STORAGE", url)
    sweep(folder, file, f"--config={TOY}", *([f"--storage={url}"] if as_flag else []))
    sweep(folder)
    assert len(workers) == 2 and read_sweep(tmp_path / "s")["study"]["storage"] == url
    assert not (tmp_path / "s" / "optuna.journal").exists()
    refused_command(
        ["sweep", folder, "--storage=sqlite:///other.db"], "--storage=sqlite:///other.db"
    )
    refused_command(["sweep", folder, "--retry-failed"], "--retry-failed")


def test_one_of_several_processes_is_refused(tmp_path, monkeypatch):
    for name, value in (
        ("T2T_NUM_PROCESSES", "2"),
        ("T2T_PROCESS_ID", "0"),
        ("JAX_COORDINATOR_ADDRESS", "a:1"),
    ):
        monkeypatch.setenv(name, value)
    refused_command(["sweep", f"--config={TOY}", f"--workdir={tmp_path}/s"], "sweep")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stop_writes_no_report(tmp_path, monkeypatch, number):
    """A scheduler may kill the process before a long report is written."""

    def run(worker):
        os.kill(os.getpid(), number)
        assert worker.stop.wait(60)

    monkeypatch.setattr(Worker, "run", run)
    before = signal.getsignal(number)
    assert sweep(f"--config={TOY}", f"--workdir={tmp_path}/s") == STOPPED
    assert not (tmp_path / "s" / "report").exists() and signal.getsignal(number) == before


def test_files_in_configs_can_be_swept(tmp_path):
    for file in ("table3.py", "ladder.py", "ladder.py:sides", "sizes.py", "sizes.py:depth"):
        assert (
            sweep(f"--sweep={ROOT}/configs/sweeps/{file}", f"--workdir={tmp_path}/s", "--dry-run")
            == OK
        ), file


def test_table3_has_the_presets_and_the_papers_ratios():
    from t2t_flax.extensions.recipes.presets import TABLE3_ROWS

    file = str(ROOT / "configs" / "sweeps" / "table3.py")
    table3 = config_lib.from_python_file("--sweep", file, "get_sweep", "")
    for trial in expand(table3.config, {}, table3.rows, table3.seeds):
        assert trial.config == config_lib.load_config(f"table3_{trial.row}"), trial.row
    assert len(table3.rows) == len(TABLE3_ROWS) == 20
    small = config_lib.from_python_file("--sweep", f"{file}:multi30k", "get_sweep", "")
    paper = {t.row: t.config.model for t in expand(table3.config, {}, table3.rows, 1)}
    width = lambda m, key: getattr(m, key) or m.d_model // m.num_heads  # noqa: E731
    for trial in expand(str(ROOT / small.config), {}, small.rows, 1):
        model, other = trial.config.model, paper[trial.row]
        assert model.num_heads == other.num_heads
        for key in ("d_model", "d_ff", "d_k", "d_v"):
            assert width(model, key) * 8 == width(other, key), trial.row
        for key in ("num_encoder_layers", "num_decoder_layers"):
            assert getattr(model, key) * 2 == getattr(other, key), trial.row


def test_machine_is_divided(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert [r.environment["CUDA_VISIBLE_DEVICES"] for r in divide_machine(2)] == ["0,1", "2,3"]
    eight = [r.environment for r in divide_machine(8)]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in eight] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert eight[0]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.450"
    # Also where the user has set it: JAX refuses both.
    assert eight[0]["XLA_CLIENT_MEM_FRACTION"] == ""
    refused_command(["sweep", f"--config={TOY}", "--workdir=s", "--parallel=3"], "--parallel=3")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 7, 9, 12}, raising=False)
    assert [r.cores for r in divide_machine(2)] == [(3, 4), (7, 9, 12)] and divide_machine(1)[
        0
    ].cores == ()


SMALL = {
    "data.train": "toy:train:300", "data.valid": "toy:valid:20", "data.test": "toy:test:20", "data.vocab_size": "300",
    "data.batch_tokens": "256", "model.d_model": "32", "model.d_ff": "32", "model.num_heads": "2", "mesh.cpu_devices": "1",
    "model.num_encoder_layers": "1", "model.num_decoder_layers": "1", "train.steps": "30", "eval.every_steps": "10",
    "checkpoint.every_steps": "10", "log.every_steps": "1", "decode.max_length_offset": "5", "decode.beam_size": "2",
    "eval.bootstrap_samples": "10",
}  # fmt: skip


@pytest.mark.smoke
@pytest.mark.slow
def test_killed_sweep_goes_on_and_equals_runs_by_hand(tmp_path):
    """The worker is killed with its training; one of its trials diverges."""
    keys = [f"--config.{key}={value}" for key, value in SMALL.items()]
    command = [
        sys.executable,
        "-m",
        "t2t_flax",
        "sweep",
        f"--config={TOY}",
        f"--workdir={tmp_path}/s",
        *keys,
    ]
    command += ["--set", "optimizer.peak_lr=0.003,1e30", "--config.optimizer.schedule=constant"]
    env, name = environment(), "peak_lr=0.003,seed=0"
    folder = Folder(tmp_path / "s")
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as worker:
        saved = folder.workdir(name) / "checkpoints" / "10"
        wait_for(lambda: saved.exists() or worker.poll() is not None, "checkpoint 10")
        assert worker.poll() is None
        worker.kill()
    wait_for(lambda: not folder.holder(name), "the end of the training")
    assert folder.state(name) == "stopped"
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert result.returncode == OK, result.stdout + result.stderr
    assert (folder.state(name), folder.state("peak_lr=1e30,seed=0")) == ("complete", "diverged")
    assert "resuming" in folder.log(name).read_text()
    by_hand = [f"--config={folder.config(name)}", f"--workdir={tmp_path}/by-hand"]
    subprocess.run(
        [sys.executable, "-m", "t2t_flax", "train", *by_hand], env=env, check=True, timeout=280
    )
    losses = [
        [(line["step"], line["loss"]) for line in map(json.loads, file.open()) if "loss" in line]
        for file in (folder.workdir(name) / "metrics.jsonl", tmp_path / "by-hand" / "metrics.jsonl")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 30
