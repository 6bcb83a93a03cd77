"""The command line as a person meets it: help, mistakes, and a small run from train to translate."""

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.processes import environment

from t2t_flax.__main__ import main
from t2t_flax.config import Data
from t2t_flax.config.schema import fields
from t2t_flax.data.sources import toy

ROOT = Path(__file__).parents[2]
SMALL = [
    "--config.model.d_model=32", "--config.model.d_ff=64", "--config.data.vocab_size=400", "--config.data.batch_tokens=512",
    "--config.model.num_encoder_layers=1", "--config.model.num_decoder_layers=1", "--config.mesh.cpu_devices=1",
    "--config.eval.every_steps=10", "--config.checkpoint.every_steps=10", "--config.log.every_steps=5",
    "--config.data.train=toy:train:500", "--config.data.valid=toy:valid:20", "--config.data.test=toy:test:20",
]  # fmt: skip


def t2t(*arguments, cwd, stdin=None, code=0):
    """Runs a command in a process of its own, as a user does; returns (standard output, standard error)."""
    done = subprocess.run(
        [sys.executable, "-m", "t2t_flax", *arguments],
        cwd=cwd,
        env=environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder, workdir, what `train` printed) of a run of 20 updates."""
    folder = tmp_path_factory.mktemp("cli")
    out, _ = t2t(
        "train",
        f"--config={ROOT / 'configs' / 'toy.py'}",
        "--workdir=runs/toy",
        "--config.train.steps=20",
        *SMALL,
        cwd=folder,
    )
    return folder, folder / "runs" / "toy", out


def test_train_prints_progress_and_writes_a_record(trained):
    _, workdir, out = trained
    for text in ("500 pairs", "parameters, vocabulary 400", "after the start of the process", "tok/s", "fill", "valid_nll", "decode 20/20 sentences",
                 "BLEU", "nrefs:1|case:mixed|eff:no|tok:13a", "source  ", "reference  ", "output  ", "allocator:"):  # fmt: skip
        assert text in out
    record = json.loads((workdir / "eval" / "test-20.json").read_text())
    hypotheses = (workdir / "eval" / "test-20.hyp.txt").read_text().split("\n")[:-1]
    assert len(hypotheses) == record["counts"]["sentences"] == 20
    assert (workdir / "complete.json").exists() and (workdir / "tensorboard").is_dir()
    assert json.loads((workdir / "config.json").read_text())["model"]["d_model"] == 32


def test_complete_run_is_reported_and_more_steps_resume_it(trained):
    folder, workdir, _ = trained
    command = ["train", f"--config={ROOT / 'configs' / 'toy.py'}", "--workdir=runs/toy", *SMALL]
    out, _ = t2t(*command, "--config.train.steps=20", cwd=folder)
    assert "is complete: 20 updates" in out and "BLEU" in out and "larger --config.train.steps" in out
    out, _ = t2t(*command, "--config.train.steps=25", cwd=folder)
    assert "resuming runs/toy after update 20" in out and (workdir / "eval" / "test-25.json").exists()


def test_translate_needs_only_the_workdir(trained, tmp_path):
    _, workdir, _ = trained
    lines = [s for s, _ in toy.pairs("test", 5)]
    text = "\n".join([lines[0], "", *lines[1:]]) + "\n"
    out, _ = t2t("translate", f"--workdir={workdir}", cwd=tmp_path, stdin=text)
    assert len(out.split("\n")) == 7 and out.split("\n")[1] == ""
    out, _ = t2t("translate", f"--workdir={workdir}", "--n_best=3", "--scores", cwd=tmp_path, stdin=lines[0] + "\n")
    assert [line.split(" ||| ")[0] for line in out.splitlines()] == ["0"] * 3
    scores = [float(line.split(" ||| ")[2]) for line in out.splitlines()]
    assert len(scores) == 3
    (tmp_path / "starts").write_text("Der\n")
    (tmp_path / "in").write_text(lines[0])
    arguments = ["--input=in", "--output=out", "--prefix=starts", "--config.decode.max_length_offset=0"]
    _, err = t2t("translate", f"--workdir={workdir}", *arguments, cwd=tmp_path)
    assert (tmp_path / "out").read_text().startswith("Der")
    _, err = t2t("translate", f"--workdir={workdir}", "--config.decode.max_source_length=3",
                 "--config.decode.max_length_offset=1", "--config.decode.max_length_ratio=0", cwd=tmp_path, stdin=lines[1] + "\n")  # fmt: skip
    assert "warning: 1 of 1 lines truncated to config.decode.max_source_length: line 1" in err
    assert "warning: 1 of 1 lines ended by the length limit" in err


def test_evaluate_other_text_with_averaged_checkpoints(trained, tmp_path):
    _, workdir, _ = trained
    pairs = list(toy.pairs("valid", 12))
    for n, name in enumerate(("own.en", "own.de.gz")):
        data = "".join(p[n] + "\n" for p in pairs).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    out, _ = t2t(
        "evaluate", f"--workdir={workdir}", "--average=2", "--config.data.test=own.en,own.de.gz", "--config.eval.samples=2", cwd=tmp_path
    )  # fmt: skip
    assert "12 sentences), mean of steps" in out and out.count("reference  ") == 2
    record = json.loads(max((workdir / "eval").glob("test-*.json"), key=lambda p: p.stat().st_mtime).read_text())
    assert len(record["checkpoint"]["averaged"]) == 2 and record["data"]["spec"] == "own.en,own.de.gz"


def test_evaluate_many_runs_reuses_existing_records(trained, tmp_path):
    """One table; what is there already is not decoded again, a run that fails does not keep the others from it."""
    import shutil

    _, workdir, _ = trained
    other = tmp_path / "other"
    workdir = shutil.copytree(workdir, tmp_path / "one")
    shutil.rmtree(workdir / "eval")
    shutil.copytree(workdir, other)
    command = ["evaluate", f"--workdir={workdir}", f"--workdir={other}", "--step=10", "--step=20"]
    out, _ = t2t(*command, "--table=t.csv", cwd=tmp_path)
    with (tmp_path / "t.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [line["checkpoint"] for line in table] == ["10", "20", "10", "20"]
    assert table[0]["difference"] == "" and table[2]["difference"].startswith("+0.00")
    assert out.count("== --workdir=") == 4
    times = {path: path.stat().st_mtime_ns for path in workdir.glob("eval/*")}
    again, _ = t2t(*command, cwd=tmp_path)
    assert "==" not in again and times == {path: path.stat().st_mtime_ns for path in workdir.glob("eval/*")}
    (other / "eval" / "test-10.json").unlink()
    for path in (other / "checkpoints" / "10").rglob("*"):
        if path.is_file() and path.stat().st_size > 1000:
            path.write_bytes(b"x" * path.stat().st_size)
    out, err = t2t(*command, cwd=tmp_path, code=1)
    assert f"not evaluated: {other} step 10 (exit code 2)" in err and out.count("20  ") >= 2
    for words, told in (
        ([f"--workdir={workdir}", f"--workdir={tmp_path}/no"], "holds no run"),
        (
            [f"--workdir={workdir}", f"--workdir={other}", "--compare=x.json"],
            "several runs are compared with the first",
        ),
        ([f"--workdir={workdir}", "--table=t.csv"], "more than once"),
    ):
        out, err = t2t("evaluate", *words, cwd=tmp_path, code=2)
        assert told in err and not out


def test_evaluate_averages_of_many_runs(trained, tmp_path):
    import shutil

    _, workdir, _ = trained
    for name in ("one", "other"):
        shutil.rmtree(shutil.copytree(workdir, tmp_path / name) / "eval")
    mean = ["--workdir=one", "--workdir=other", "--average=2", "--table=m.csv"]
    assert t2t("evaluate", *mean, cwd=tmp_path)[0].count("== --workdir=") == 2
    assert "==" not in t2t("evaluate", *mean, cwd=tmp_path)[0]
    with (tmp_path / "m.csv").open() as file:
        averaged = list(csv.DictReader(file))
    assert [line["checkpoint"].startswith("mean of 2 up to ") for line in averaged] == [True, True]
    assert averaged[1]["difference"].startswith("+0.00")


def test_load_in_python(trained):
    import t2t_flax

    run = t2t_flax.load(str(trained[1]), overrides={"mesh.data": "-1"})
    line = next(toy.pairs("test", 1))[0]
    (translation,) = run.translate([line])
    assert isinstance(translation.text, str) and translation.hypotheses[0].score < 0


def test_prepare_is_idempotent(tmp_path):
    command = ["prepare", f"--config={ROOT / 'configs' / 'toy.py'}", "--workdir=w", *SMALL]
    out, _ = t2t(*command, cwd=tmp_path)
    assert "train: 500 pairs" in out and "valid: 20 pairs" in out
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "w" / "data").rglob("*") if p.is_file()}
    assert len(files) > 10
    t2t(*command, cwd=tmp_path)
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
    fails = lambda *a: train_fails(tmp_path, capsys, *a)  # noqa: E731
    m = fails(text_files(tmp_path, target="c\nd\ne\n"))
    assert "x.en has 2 lines" in m and "x.de has 3" in m
    message = fails(text_files(tmp_path, source=b"good\nbad \xff byte\n"))
    assert "x.en line 2" in message and "0xff" in message
    assert "line 2" in fails(
        text_files(tmp_path, source="a\n\n"), "--config.data.empty_lines=error", "--config.data.vocab_size=265"
    )
    assert "there is no file" in fails("--config.data.train=nowhere.en,nowhere.de")
    assert "config.data.train" in fails("--config.data.train=nowhere.en,nowhere.de")
    assert "no pairs" in (m := fails(text_files(tmp_path, "", ""))) or "empty" in m
    assert "config.data.vocab_size = 4000 is too large" in fails(text_files(tmp_path, long, long))
    assert "config.data.train is empty" in fails("--config.data.train=")
    assert "Did you mean 'model.dropout'" in fails("--config.model.droput=0.1")
    assert "--config.model.dropout has no value" in fails("--config.model.dropout")
    assert "unrecognized arguments: --wrkdir" in fails("--wrkdir=x")


def test_given_tokenizer_larger_than_vocab_size_is_refused(trained, tmp_path, capsys):
    model = trained[1] / "tokenizer" / "tokenizer.model"
    message = train_fails(
        tmp_path, capsys, "--config.data.train=toy:train:100", f"--config.data.tokenizer_model={model}", "--config.data.vocab_size=300",
    )  # fmt: skip
    assert "config.data.vocab_size = 300 is smaller than the 400 pieces" in message


def test_workdir_of_another_config_is_refused(trained, capsys):
    arguments = ["train", f"--config={ROOT / 'configs' / 'toy.py'}", f"--workdir={trained[1]}", *SMALL]
    assert main([*arguments, "--config.train.steps=20", "--config.model.d_ff=128"]) == 2
    err = capsys.readouterr().err
    assert "model.d_ff: 64 in the workdir, 128 now" in err and "Use another --workdir" in err


def test_other_commands_refuse_wrong_arguments(trained, tmp_path, capsys):
    folder, workdir, _ = trained
    assert main(["translate", f"--workdir={tmp_path}"]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert main(["evaluate", f"--workdir={workdir}", "--step=7"]) == 2
    assert "no checkpoint of step 7" in capsys.readouterr().err
    (tmp_path / "bad").write_bytes(b"ok\n\xc3(\n")
    assert main(["translate", f"--workdir={workdir}", f"--input={tmp_path / 'bad'}"]) == 2
    assert "bad line 2, byte 1: 0xc3 is not UTF-8" in capsys.readouterr().err
    assert main(["translate", f"--workdir={workdir}", "--config.model.d_model=64"]) == 2
    assert "model.d_model: 32 there, 64 here" in capsys.readouterr().err
    assert main(["translate"]) == 2
    assert "--workdir" in capsys.readouterr().err
    assert main(["explain"]) == 2


def test_checkpoint_of_another_tokenizer_is_refused(trained, tmp_path, capsys):
    import shutil

    from t2t_flax.data.tokenizers import TokenizerPair
    from t2t_flax.data.tokenizers.sentencepiece import train_sentencepiece

    copy = shutil.copytree(trained[1], tmp_path / "copy")
    other = train_sentencepiece(
        [s for s, _ in toy.pairs("valid", 300)], Data(tokenizer="bpe", vocab_size=400, byte_fallback=False)
    )
    shutil.rmtree(copy / "tokenizer")
    TokenizerPair(other, other).save(copy / "tokenizer")
    assert main(["translate", f"--workdir={copy}", "--input=/dev/null", "--config.mesh.cpu_devices=8"]) == 2
    assert "belongs to another tokenizer" in capsys.readouterr().err


def test_final_evaluation_averages_checkpoints(tmp_path):
    """checkpoint.average_last, eval.bootstrap_samples = 0, and BLEU on the way."""
    out, _ = t2t(
        "train", f"--config={ROOT / 'configs' / 'toy.py'}", "--workdir=w", *SMALL, "--config.train.steps=30",
        "--config.checkpoint.average_last=3", "--config.eval.decode_every_steps=15",
        "--config.eval.bootstrap_samples=0", "--config.checkpoint.keep_last=3", cwd=tmp_path,
    )  # fmt: skip
    record = json.loads((tmp_path / "w" / "eval" / "test-30-mean3.json").read_text())
    assert record["checkpoint"]["averaged"] == [30, 20, 10]
    assert "confidence" not in record["scores"]["sacrebleu"]
    assert out.count("valid_bleu") == 2
