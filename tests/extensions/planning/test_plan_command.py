"""The `plan` command: user errors, and its output for simulated devices."""

import json
import subprocess
import sys

import pytest

from t2t_flax.__main__ import main

SMALL = [
    "--config=aiayn_base",
    *(f"--config.model.{key}" for key in ("num_encoder_layers=1", "num_decoder_layers=1", "d_model=16", "d_ff=32")),
    "--config.model.num_heads=4",
    "--config.data.vocab_size=64",
    "--config.data.batch_tokens=1024",
    "--config.data.max_length=32",
    "--config.data.pack_length=32",
]


@pytest.mark.slow
def test_plan_of_simulated_devices(tmp_path):
    file = tmp_path / "plan.json"
    words = ["plan", *SMALL, "--topology=cpu:8", "--topology=2xcpu:2", f"--json={file}"]
    done = subprocess.run([sys.executable, "-m", "t2t_flax", *words], capture_output=True, text=True, check=True)
    text = done.stdout
    eight, four = json.loads(file.read_text())
    assert (eight["devices"], four["devices"], eight["prediction"]) == (8, 4, None)
    assert eight["train"]["memory"]["argument"] >= eight["state_bytes"] and eight["train"]["memory"]["temp"] > 0
    (gradients,) = eight["train"]["collectives"]
    table = 128 * 16 * 4  # the tied table may be reduced once for each of its three uses
    assert gradients["kind"] == "all-reduce" and abs(gradients["bytes"] - eight["state_bytes"] / 3) < 2.1 * table
    assert "no time is predicted" in text and text.splitlines()[-2].split()[:2] == ["2xcpu:2", "4"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--topology=v7q-8"], "no such machine"),
        (["--topology=h100-12"], "groups of 8"),
        (["--topology=,"], "names no machine"),
        (["--topology=cpu:8", "--rows=0"], "at least 1"),
        ([], "--topology"),
    ],
)
def test_user_errors_exit_with_2(flags, message, capsys):
    assert main(["plan", *SMALL, *flags]) == 2
    assert message in capsys.readouterr().err
