"""The command line: a small run from train to translate, and wrong input. Most commands run in this process."""

import functools
import gzip
import io
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.processes import environment

import t2t_flax
from t2t_flax.__main__ import main
from t2t_flax.config import Data
from t2t_flax.config.schema import fields
from t2t_flax.data.sources import toy
from t2t_flax.data.tokenizers import SentencePieceTokenizer, TokenizerPair

ROOT = Path(__file__).parents[2]
TOY = f"--config={ROOT / 'configs' / 'toy.py'}"
SMALL = [
    "--config.model.d_model=32", "--config.model.d_ff=64", "--config.data.vocab_size=400", "--config.data.batch_tokens=512",
    "--config.model.num_encoder_layers=1", "--config.model.num_decoder_layers=1", "--config.mesh.cpu_devices=1",
    "--config.eval.every_steps=10", "--config.checkpoint.every_steps=10", "--config.log.every_steps=5",
    "--config.data.train=toy:train:500", "--config.data.valid=toy:valid:20", "--config.data.test=toy:test:20",
    "--config.decode.max_length_offset=5",
]  # fmt: skip


def run_process(*arguments, cwd):
    """Runs a command in its own process, as a user does; returns its standard output."""
    result = subprocess.run(
        [sys.executable, "-m", "t2t_flax", *arguments], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=500
    )  # fmt: skip
    assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stderr, result.stderr
    return result.stdout


@pytest.fixture
def t2t(tmp_path, monkeypatch, capsys):
    """Runs a command in this process; returns (standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, stdin="", code=0):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capsys.readouterr()
        assert main(list(map(str, arguments))) == code, capsys.readouterr()
        return capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(workdir, output of `train`) of a run of 20 updates."""
    folder = tmp_path_factory.mktemp("cli")
    out = run_process("train", TOY, "--workdir=runs/toy", "--config.train.steps=20", *SMALL, cwd=folder)
    return folder / "runs" / "toy", out


@pytest.fixture
def workdir(trained):
    """The workdir of the trained run; tests must not change it."""
    return trained[0]


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of the trained run."""
    return shutil.copytree(trained[0], tmp_path / "run")


def test_train_prints_progress_and_writes_a_record(trained):
    workdir, out = trained
    for text in ("500 pairs", "parameters, vocabulary 400", "after the start of the process", "tok/s", "fill", "valid_nll", "decode 20/20 sentences",
                 "BLEU", "nrefs:1|case:mixed|eff:no|tok:13a", "source  ", "reference  ", "output  ", "allocator:"):  # fmt: skip
        assert text in out
    record = json.loads((workdir / "eval" / "test-20.json").read_text())
    hypotheses = (workdir / "eval" / "test-20.hyp.txt").read_text().split("\n")[:-1]
    assert len(hypotheses) == record["counts"]["sentences"] == 20
    assert (workdir / "complete.json").exists()
    assert json.loads((workdir / "config.json").read_text())["model"]["d_model"] == 32


def test_complete_run_is_reported_and_more_steps_resume_it(copy, t2t):
    command = ["train", TOY, f"--workdir={copy}", *SMALL]
    out, _ = t2t(*command, "--config.train.steps=20")
    assert "is complete: 20 updates" in out and "BLEU" in out and "raise --config.train.steps" in out
    out, _ = t2t(*command, "--config.train.steps=25")
    assert f"resuming {copy} after update 20" in out and (copy / "eval" / "test-25.json").exists()


def test_translate_needs_only_the_workdir(workdir, t2t, tmp_path):
    lines = [s for s, _ in toy.pairs("test", 5)]
    out, _ = t2t("translate", f"--workdir={workdir}", stdin="\n".join([lines[0], "", *lines[1:]]) + "\n")
    assert len(out.split("\n")) == 7 and out.split("\n")[1] == ""
    out, _ = t2t("translate", f"--workdir={workdir}", "--n-best=3", "--scores", stdin=lines[0] + "\n")
    assert [line.split(" ||| ")[0] for line in out.splitlines()] == ["0"] * 3
    assert len([float(line.split(" ||| ")[2]) for line in out.splitlines()]) == 3
    (tmp_path / "starts").write_text("Der\n")
    (tmp_path / "in").write_text(lines[0])
    files = ["--input=in", "--output=out", "--prefix=starts"]
    t2t("translate", f"--workdir={workdir}", *files, "--config.decode.max_length_offset=0")
    assert (tmp_path / "out").read_text().startswith("Der")
    limits = ["max_source_length=3", "max_length_offset=1", "max_length_ratio=0"]
    flags = [f"--config.decode.{limit}" for limit in limits]
    _, err = t2t("translate", f"--workdir={workdir}", *flags, stdin=lines[1] + "\n")
    assert "warning: 1 of 1 lines truncated to config.decode.max_source_length: line 1" in err
    assert "warning: 1 of 1 lines ended by the length limit" in err


@pytest.mark.slow
def test_translate_answers_lines_of_a_pipe_one_by_one(workdir):
    lines = [s for s, _ in toy.pairs("test", 3)]
    with subprocess.Popen(
        [sys.executable, "-m", "t2t_flax", "translate", f"--workdir={workdir}", "--scores"],
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
    ) as child:  # fmt: skip
        for line in lines:
            child.stdin.write(line + "\n")
            assert float(child.stdout.readline().split("\t")[1]) < 0
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=300)
    assert child.returncode == 130 and out == "" and "stopped by SIGINT" in err and "Traceback" not in err


@pytest.mark.slow
def test_evaluate_other_text_with_averaged_checkpoints(copy, t2t, tmp_path):
    pairs = list(toy.pairs("valid", 12))
    for n, name in enumerate(("own.en", "own.de.gz")):
        data = "".join(p[n] + "\n" for p in pairs).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    keys = ["--config.data.test=own.en,own.de.gz"]
    out, _ = t2t("evaluate", f"--workdir={copy}", "--average=2", *keys)
    assert "12 sentences), mean of steps" in out and out.count("reference  ") == 5
    record = json.loads(max((copy / "eval").glob("test-*.json"), key=lambda p: p.stat().st_mtime).read_text())
    assert len(record["checkpoint"]["averaged"]) == 2 and record["data"]["spec"] == "own.en,own.de.gz"


def test_load_in_python(workdir):
    run = t2t_flax.load(str(workdir), overrides={"mesh.data": "-1"})
    line = next(toy.pairs("test", 1))[0]
    (translation,) = run.translate([line])
    assert isinstance(translation.text, str) and translation.hypotheses[0].score < 0


def test_prepare_is_idempotent(t2t, tmp_path):
    command = ["prepare", TOY, "--workdir=w", *SMALL]
    out, _ = t2t(*command)
    assert "train: 500 pairs" in out and "valid: 20 pairs" in out
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "w" / "data").rglob("*") if p.is_file()}
    assert len(files) > 10
    t2t(*command)
    assert files == {p: p.stat().st_mtime_ns for p in (tmp_path / "w" / "data").rglob("*") if p.is_file()}


def test_explain_lists_every_key(capsys):
    assert main(["explain", "--keys"]) == 0
    out = capsys.readouterr().out
    for name in fields():
        assert f"\n  {name} = " in out


def text_files(folder, source="a\nb\n", target="c\nd\n"):
    for name, text in (("x.en", source), ("x.de", target)):
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return f"--config.data.train={folder / 'x.en'},{folder / 'x.de'}"


def train_fails(tmp_path, capsys, *arguments):
    config = f"--config={ROOT / 'configs' / 'text.py'}"
    assert main(["train", config, f"--workdir={tmp_path / 'w'}", "--config.mesh.cpu_devices=8", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("t2t_flax train: ") and "Traceback" not in message
    assert not list(tmp_path.rglob("*.partial*"))
    return message


def test_bad_input_is_located_and_leaves_no_partial_files(tmp_path, capsys):
    long = "".join(f"sentence number {i} of many\n" for i in range(50))
    fails = functools.partial(train_fails, tmp_path, capsys)
    message = fails(text_files(tmp_path, target="c\nd\ne\n"))
    assert "x.en has 2 lines" in message and "x.de has 3" in message
    message = fails(text_files(tmp_path, source=b"good\nbad \xff byte\n"))
    assert "x.en line 2" in message and "0xff" in message
    assert "there is no file" in fails("--config.data.train=nowhere.en,nowhere.de")
    assert "config.data.train" in fails("--config.data.train=nowhere.en,nowhere.de")
    message = fails(text_files(tmp_path, "", ""))
    assert "no pairs" in message or "empty" in message
    assert "config.data.vocab_size = 4000 is too large" in fails(text_files(tmp_path, long, long))
    assert "config.data.train is empty" in fails("--config.data.train=")
    assert "Did you mean 'model.dropout'" in fails("--config.model.droput=0.1")
    assert "--config.model.dropout has no value" in fails("--config.model.dropout")
    assert "unrecognized arguments: --wrkdir" in fails("--wrkdir=x")


def test_given_tokenizer_larger_than_vocab_size_is_refused(workdir, tmp_path, capsys):
    model = workdir / "tokenizer" / "tokenizer.model"
    keys = [
        "--config.data.train=toy:train:100",
        f"--config.data.tokenizer_model={model}",
        "--config.data.vocab_size=300",
    ]
    message = train_fails(tmp_path, capsys, *keys)
    assert "config.data.vocab_size = 300 is smaller than the 400 pieces" in message


def test_workdir_of_another_config_is_refused(workdir, t2t):
    command = ["train", TOY, f"--workdir={workdir}", *SMALL, "--config.train.steps=20", "--config.model.d_ff=128"]
    _, err = t2t(*command, code=2)
    assert "model.d_ff: 64 in the workdir, 128 now" in err and "Use another --workdir" in err


def test_other_commands_refuse_wrong_arguments(workdir, t2t, tmp_path):
    assert "holds no run" in t2t("translate", f"--workdir={tmp_path}", code=2).err
    assert "no checkpoint of step 7" in t2t("evaluate", f"--workdir={workdir}", "--step=7", code=2).err
    (tmp_path / "bad").write_bytes(b"ok\n\xc3(\n")
    err = t2t("translate", f"--workdir={workdir}", "--input=bad", code=2).err
    assert "bad line 2, byte 1: 0xc3 is not UTF-8" in err
    err = t2t("translate", f"--workdir={workdir}", "--config.model.d_model=64", code=2).err
    assert "model.d_model: 32 there, 64 here" in err
    assert "--workdir" in t2t("translate", code=2).err
    t2t("explain", code=2)


def test_checkpoint_of_another_tokenizer_is_refused(copy, t2t):
    data = Data(tokenizer="bpe", vocab_size=400, byte_fallback=False)
    other = SentencePieceTokenizer.train([source for source, _ in toy.pairs("valid", 300)], data)
    shutil.rmtree(copy / "tokenizer")
    TokenizerPair(other, other).save(copy / "tokenizer")
    assert "belongs to another tokenizer" in t2t("translate", f"--workdir={copy}", code=2).err


@pytest.mark.slow
def test_final_evaluation_averages_checkpoints(t2t, tmp_path):
    """checkpoint.average_last, eval.bootstrap_samples = 0, and BLEU during training."""
    keys = ["train.steps=6", "checkpoint.every_steps=2", "checkpoint.average_last=3", "eval.decode_every_steps=3"]
    keys += ["eval.bootstrap_samples=0"]
    out, _ = t2t("train", TOY, "--workdir=w", *SMALL, *(f"--config.{key}" for key in keys))
    record = json.loads((tmp_path / "w" / "eval" / "test-6-mean3.json").read_text())
    assert record["checkpoint"]["averaged"] == [6, 4, 2]
    assert "confidence" not in record["scores"]["sacrebleu"]
    assert out.count("valid_bleu") == 2
