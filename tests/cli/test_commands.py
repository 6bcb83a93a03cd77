"""The command line: a small run from train to translate, and wrong input."""

import contextlib
import gzip
import io
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.configs import SMALL_KEYS
from helpers.processes import environment
from helpers.refusals import assert_names, refused_command

from t2t_flax.__main__ import main
from t2t_flax.config import Data
from t2t_flax.data.sources import toy
from t2t_flax.data.tokenizers import SentencePieceTokenizer, TokenizerPair

ROOT = Path(__file__).parents[2]
TOY = f"--config={ROOT / 'configs' / 'toy.py'}"
SMALL = [f"--config.{key}={value}" for key, value in SMALL_KEYS.items()]


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
    """The workdir and the output of `train` of a run of 20 updates."""
    folder, out = tmp_path_factory.mktemp("cli"), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out):
        assert main(["train", TOY, "--workdir=runs/toy", "--config.train.steps=20", *SMALL]) == 0
    return folder / "runs" / "toy", out.getvalue()


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
    assert_names(
        out, "500 pairs", "vocabulary 400", "tok/s", "valid_nll", "20/20 sentences", "BLEU"
    )
    assert_names(
        out,
        "start of",
        "fill",
        "nrefs:1|case:mixed|eff:no|tok:13a",
        "source",
        "reference",
        "output",
        "allocator:",
    )
    record = json.loads((workdir / "eval" / "test-20.json").read_text())
    hypotheses = (workdir / "eval" / "test-20.hyp.txt").read_text().split("\n")[:-1]
    assert len(hypotheses) == record["counts"]["sentences"] == 20
    assert (workdir / "complete.json").exists()
    assert json.loads((workdir / "config.json").read_text())["model"]["d_model"] == 32


def test_complete_run_is_reported_and_more_steps_resume_it(copy, t2t):
    command = ["train", TOY, f"--workdir={copy}", *SMALL]
    out, _ = t2t(*command, "--config.train.steps=20")
    assert_names(out, "20 updates", "BLEU", "--config.train.steps")
    out, _ = t2t(*command, "--config.train.steps=25")
    assert_names(out, f"{copy}", "update 20")
    assert (copy / "eval" / "test-25.json").exists()


def test_translate_needs_only_the_workdir(workdir, t2t, tmp_path):
    lines = [s for s, _ in toy.pairs("test", 5)]
    out, _ = t2t(
        "translate", f"--workdir={workdir}", stdin="\n".join([lines[0], "", *lines[1:]]) + "\n"
    )
    assert len(out.split("\n")) == 7 and out.split("\n")[1] == ""
    out, _ = t2t(
        "translate", f"--workdir={workdir}", "--n-best=3", "--scores", stdin=lines[0] + "\n"
    )
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
    assert_names(err, "config.decode.max_source_length", "line 1", "length limit")


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
    assert child.returncode == 130 and out == "" and "SIGINT" in err and "Traceback" not in err


@pytest.mark.slow
def test_evaluate_other_text_with_averaged_checkpoints(copy, t2t, tmp_path):
    pairs = list(toy.pairs("valid", 12))
    for n, name in enumerate(("own.en", "own.de.gz")):
        data = "".join(p[n] + "\n" for p in pairs).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    keys = ["--config.data.test=own.en,own.de.gz"]
    out, _ = t2t("evaluate", f"--workdir={copy}", "--average=2", *keys)
    assert_names(out, "12 sentences")
    assert out.count("reference  ") == 5
    record = json.loads(
        max((copy / "eval").glob("test-*.json"), key=lambda p: p.stat().st_mtime).read_text()
    )
    assert (
        len(record["checkpoint"]["averaged"]) == 2 and record["data"]["spec"] == "own.en,own.de.gz"
    )


def test_prepare_is_idempotent(t2t, tmp_path):
    command = ["prepare", TOY, "--workdir=w", *SMALL]
    out, _ = t2t(*command)
    assert_names(out, "500 pairs", "20 pairs")
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "w" / "data").rglob("*") if p.is_file()}
    assert len(files) > 10
    t2t(*command)
    assert files == {
        p: p.stat().st_mtime_ns for p in (tmp_path / "w" / "data").rglob("*") if p.is_file()
    }


def text_files(folder, source="a\nb\n", target="c\nd\n"):
    for name, text in (("x.en", source), ("x.de", target)):
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return f"--config.data.train={folder / 'x.en'},{folder / 'x.de'}"


LONG = "".join(f"sentence number {i} of many\n" for i in range(50))


@pytest.mark.parametrize(
    ("text", "flags", "names"),
    [
        (dict(target="c\nd\ne\n"), [], ["x.en", "2 lines", "x.de", "3"]),
        (dict(source=b"good\nbad \xff byte\n"), [], ["x.en", "line 2", "0xff"]),
        (dict(source="", target=""), [], ["x.en", "empty"]),
        (dict(source=LONG, target=LONG), [], ["config.data.vocab_size", "2000"]),
        (None, ["--config.data.train=nowhere.en,nowhere.de"], ["config.data.train", "nowhere.en"]),
        (None, ["--config.data.train="], ["config.data.train"]),
        (None, ["--config.model.droput=0.1"], ["'model.dropout'"]),
        (None, ["--config.model.dropout"], ["--config.model.dropout"]),
        (None, ["--wrkdir=x"], ["--wrkdir"]),
    ],
)
def test_bad_input_is_located_and_leaves_no_partial_files(tmp_path, text, flags, names):
    flags = flags if text is None else [text_files(tmp_path, **text)]
    config = f"--config={ROOT / 'configs' / 'text.py'}"
    command = [
        "train",
        config,
        f"--workdir={tmp_path / 'w'}",
        "--config.mesh.cpu_devices=1",
        *flags,
    ]
    refused_command(command, *names)
    assert not list(tmp_path.rglob("*.partial*"))


def test_compressed_input_is_named(workdir, tmp_path):
    (tmp_path / "lines").write_bytes(gzip.compress(b"It is late.\n"))
    refused_command(
        ["translate", f"--workdir={workdir}", f"--input={tmp_path / 'lines'}"], "lines", ".gz"
    )


def test_given_tokenizer_larger_than_vocab_size_is_refused(workdir, tmp_path):
    keys = {
        "data.train": "toy:train:100",
        "data.tokenizer_model": workdir / "tokenizer" / "tokenizer.model",
        "data.vocab_size": 300,
        "mesh.cpu_devices": 1,
    }
    command = ["train", f"--config={ROOT / 'configs' / 'text.py'}", f"--workdir={tmp_path / 'w'}"]
    command += [f"--config.{key}={value}" for key, value in keys.items()]
    refused_command(command, "config.data.vocab_size", "300", "400")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (
            ["train", TOY, *SMALL, "--config.train.steps=20", "--config.model.d_ff=128"],
            ["model.d_ff", "64", "128"],
        ),
        (["evaluate", "--step=7"], ["step 7"]),
        (["translate", "--input=bad"], ["line 2", "byte 1", "0xc3"]),
        (["translate", "--config.model.d_model=64"], ["model.d_model", "32", "64"]),
    ],
)
def test_wrong_arguments_for_a_run_are_refused(workdir, tmp_path, monkeypatch, command, names):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").write_bytes(b"ok\n\xc3(\n")
    refused_command([*command, f"--workdir={workdir}"], *names)


def test_a_folder_without_a_run_is_refused(tmp_path):
    refused_command(["translate", f"--workdir={tmp_path}"], f"{tmp_path}")
    refused_command(["translate"], "--workdir")


def test_checkpoint_of_another_tokenizer_is_refused(copy):
    data = Data(tokenizer="bpe", vocab_size=400, byte_fallback=False)
    other = SentencePieceTokenizer.train([source for source, _ in toy.pairs("valid", 300)], data)
    shutil.rmtree(copy / "tokenizer")
    TokenizerPair(other, other).save(copy / "tokenizer")
    refused_command(["translate", f"--workdir={copy}"], f"{copy}", "tokenizer")


@pytest.mark.slow
def test_final_evaluation_averages_checkpoints(t2t, tmp_path):
    """checkpoint.average_last, eval.bootstrap_samples = 0, and BLEU during training."""
    keys = [
        "train.steps=6",
        "checkpoint.every_steps=2",
        "checkpoint.average_last=3",
        "eval.decode_every_steps=3",
    ]
    keys += ["eval.bootstrap_samples=0"]
    out, _ = t2t("train", TOY, "--workdir=w", *SMALL, *(f"--config.{key}" for key in keys))
    record = json.loads((tmp_path / "w" / "eval" / "test-6-mean3.json").read_text())
    assert record["checkpoint"]["averaged"] == [6, 4, 2]
    assert "confidence" not in record["scores"]["sacrebleu"]
    assert out.count("valid_bleu") == 2
