"""`explain`: parameters of a config, differences from a preset, lists of keys and presets."""

import re

import pytest
from helpers.refusals import assert_names, refused_command

from t2t_flax.__main__ import main
from t2t_flax.config.schema import fields


def explain(capsys, *arguments):
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


def number(text, label):
    return re.search(rf"{re.escape(label)}\s+([\d,.e+-]+)", text)[1].replace(",", "")


def test_parameters_batches_rates_and_memory(capsys):
    out = explain(capsys, "--config=aiayn_big")
    assert number(out, "  all") == "214171648" and number(out, "shared_embedding") == "37888000"
    assert "vocabulary 37,000" in out
    groups = [
        int(x.replace(",", ""))
        for x in re.findall(r"^  (?:encoder|decoder|shared)\S* ?\S*\s+([\d,]+)$", out, re.M)
    ]
    assert sum(groups) == 214171648, "the groups add up"
    assert number(out, "update     4,000") == "4.941059e-04"
    assert_names(out, "25,000", "256")
    assert float(number(out, "  parameters ")) == pytest.approx(214171648 * 4 / 2**20, rel=0.01)


@pytest.mark.parametrize(
    ("mesh", "microbatch", "names"),
    [("1", "0", ["15 rows", "960 slots"]),
     ("4", "0", ["16 rows", "1,024 slots", "4 devices"]),
     ("4", "64", ["4 microbatches", "4 rows", "1,024 slots"])],
)  # fmt: skip
def test_rows_are_those_of_training(capsys, mesh, microbatch, names):
    """They are rounded up to the devices, also of another machine. The others stay empty."""
    flags = ["--config.mesh.cpu_devices=1", "--config.data.batch_tokens=1000"]
    flags += [f"--config.mesh.data={mesh}", f"--config.data.microbatch_tokens={microbatch}"]
    out = explain(capsys, "--config=text", *flags)
    assert_names(out, "931 real", *names)


def test_diff_lists_every_key_that_differs_with_both_values(capsys):
    out = explain(capsys, "--config=aiayn_base", "--diff=aiayn_big", "--config.decode.alpha=1.0")
    lines = {line.split()[0]: line for line in out.splitlines() if re.match(r"\s*\w+\.\w+ ", line)}
    assert len(lines) == 9
    assert_names(lines["model.d_model"], "1024", "512")
    assert_names(lines["decode.alpha"], "0.6", "1.0")
    assert list(lines).index("model.d_ff") < list(lines).index("decode.alpha"), (
        "keys that may change come last"
    )
    assert "." not in explain(capsys, "--config=aiayn_base", "--diff=aiayn_base")


def test_keys_and_presets_are_listed(capsys):
    out = explain(capsys, "--keys")
    assert all(f"  {key} = " in out for key in fields())
    about = dict(re.findall(r"^  (\S+) = (.*(?:\n {6}.*)+)", out, re.M))
    assert_names(about["decode.temperature"], "read with", "config.decode.strategy", "(not here)")
    assert_names(about["decode.alpha"], "config.decode.length_penalty", "greedy")
    assert "(not here)" not in about["decode.alpha"] and "read with" not in about["model.d_model"]
    assert_names(about["optimizer.eps"], "config.optimizer.name", "adafactor", "lion")
    assert_names(about["filters.scorer"], "code:", "stored config")
    assert "published: 41.02" in explain(capsys, "--presets")


@pytest.mark.parametrize(
    ("flags", "names"),
    [(["--config=aiayn_base", "--diff=aiayn_bg"], ["'aiayn_big'"]),
     ([], ["explain"]),
     (["--config=aiayn_base", "--workdir=runs/x"], ["--config", "--workdir"]),
     (["--workdir=/nowhere"], ["/nowhere"]),
     (["--presets", "--keys"], ["--presets", "--keys"]),
     (["--diff=aiayn_base"], ["explain"]),
     (["--keys", "--config.model.dropout=0.2"], ["explain"])],
)  # fmt: skip
def test_wrong_arguments_are_refused(flags, names):
    refused_command(["explain", *flags], *names)
