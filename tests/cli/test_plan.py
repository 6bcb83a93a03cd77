"""`plan` as a command: what it prints for simulated devices, which it really compiles for."""

import json

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
    "--config.decode.batch_size=2",
]


def test_eight_simulated_devices_are_compiled_for(capsys, tmp_path):
    file = tmp_path / "plan.json"
    assert main(["plan", *SMALL, "--topology=cpu:8", "--topology=gpu:h100x8", f"--json={file}"]) == 0
    said = capsys.readouterr().out
    cpu, gpu = json.loads(file.read_text())
    assert (cpu["by"], cpu["devices"], cpu["prediction"]) == ("compiler", 8, None)
    assert cpu["train"]["memory"]["argument"] >= cpu["state_bytes"] and cpu["train"]["memory"]["temp"] > 0
    assert [row["kind"] for row in cpu["train"]["collectives"]] == ["all-reduce"]
    assert cpu["decode"]["fits"] and (gpu["by"], gpu["chips"]) == ("formula", 8)
    assert "no time is predicted" in said and "nothing was compiled" in said
    # The formula has two uses of the table reduced one by one, as the TPU compiler does; the CPU's does with all three.
    (row,) = cpu["formula"]["collectives"]
    table = 128 * 16 * 4
    assert sum(r["bytes"] for r in cpu["train"]["collectives"]) == pytest.approx(row["bytes"] + table, rel=0.01)
    lines = said.splitlines()[-3:]
    assert lines[0].split()[:2] == ["cpu:8", "8"] and lines[1].split()[:2] == ["gpu:h100x8", "8"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--topology=v7q-8"], "Did you mean"),
        (["--topology=,"], "names no machine"),
        ([], "--topology"),
        (["--topology=gpu:h100x8", "--config.mesh.tensor=3"], "config.mesh data x fsdp x tensor"),
    ],
)
def test_wrong_arguments_are_refused(flags, message, capsys):
    assert main(["plan", *SMALL, *flags]) == 2
    assert message in capsys.readouterr().err
