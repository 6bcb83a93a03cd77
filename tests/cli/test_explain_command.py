"""`explain`: parameters of a config, differences from a preset, lists of keys and presets."""

import re

import pytest

from t2t_flax.__main__ import main
from t2t_flax.config.schema import fields


def explain(capsys, *arguments, code=0):
    assert main(["explain", *arguments]) == code
    out = capsys.readouterr()
    return out.out if code == 0 else out.err


def number(text, label):
    return re.search(rf"{re.escape(label)}\s+([\d,.e+-]+)", text)[1].replace(",", "")


def test_parameters_batches_rates_and_memory(capsys):
    out = explain(capsys, "--config=aiayn_big")
    assert number(out, "  all") == "214171648" and number(out, "shared_embedding") == "37888000"
    assert "vocabulary 37,000" in out
    groups = [
        int(x.replace(",", "")) for x in re.findall(r"^  (?:encoder|decoder|shared)\S* ?\S*\s+([\d,]+)$", out, re.M)
    ]
    assert sum(groups) == 214171648, "the groups add up"
    assert number(out, "update     4,000") == "4.941059e-04"
    assert "25,000 real tokens" in out and "rows of 256" in out
    assert float(number(out, "  parameters ")) == pytest.approx(214171648 * 4 / 2**20, rel=0.01)


def test_diff_lists_every_key_that_differs_with_both_values(capsys):
    out = explain(capsys, "--config=aiayn_base", "--diff=aiayn_big", "--config.decode.alpha=1.0")
    assert out.startswith("9 keys differ from aiayn_big")
    for line in (
        "model.d_model                1024 in aiayn_big, 512 here",
        "decode.alpha                 0.6 in aiayn_big, 1.0 here",
    ):
        assert line in out
    assert out.index("fixed once a run has begun") < out.index("model.d_ff") < out.index("may change when a run")
    assert explain(capsys, "--config=aiayn_base", "--diff=aiayn_base") == "no difference from aiayn_base\n"


def test_keys_and_presets_are_listed(capsys):
    out = explain(capsys, "--keys")
    assert all(f"  {key} = " in out for key in fields())
    assert "published: 41.02" in explain(capsys, "--presets")


def test_wrong_arguments_are_refused(capsys):
    assert "Did you mean 'aiayn_big'?" in explain(capsys, "--config=aiayn_base", "--diff=aiayn_bg", code=2)
    assert "say what to explain" in explain(capsys, code=2)
    assert "not allowed with argument" in explain(capsys, "--config=aiayn_base", "--workdir=runs/x", code=2)
    assert "holds no run" in explain(capsys, "--workdir=/nowhere", code=2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--presets", "--keys"], "argument --keys: not allowed with argument --presets"),
     (["--diff=aiayn_base"], "say what to explain"),
     (["--keys", "--config.model.dropout=0.2"], "say what to explain")],
)  # fmt: skip
def test_flags_without_effect_are_refused(flags, message, capsys):
    assert main(["explain", *flags]) == 2
    assert message in capsys.readouterr().err
