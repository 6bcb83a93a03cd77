"""Commands with a decoder-only model, and what is refused by name."""

import json

import pytest
from helpers.configs import TINY_FLAGS

from t2t_flax.__main__ import main

ONE_STACK = ["--config.model.architecture=decoder_only", "--config.model.num_encoder_layers=0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder_only") / "run"
    assert main(["train", *TINY_FLAGS, *ONE_STACK, f"--workdir={folder}", "--config.decode.beam_size=2"]) == 0
    return folder


def test_a_run_is_trained_evaluated_and_translates(run, tmp_path, capsys):
    record = json.loads((run / "eval" / "test-2.json").read_text())
    assert record["scores"]["sacrebleu"]["score"] >= 0
    lines = tmp_path / "lines"
    lines.write_text("It is late.\nWhere is the dog?\n")
    capsys.readouterr()
    outputs = []
    for size in (1, 32):  # batch mates change nothing
        assert main(["translate", f"--workdir={run}", f"--input={lines}", f"--config.decode.batch_size={size}"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] and outputs[0].count("\n") == 2


def test_attention_to_an_encoder_is_refused_by_name(run, tmp_path, capsys):
    lines = tmp_path / "lines"
    lines.write_text("It is late.\n")
    for command in (
        ["translate", f"--workdir={run}", f"--input={lines}", "--alignments=hard"],
        ["translate", f"--workdir={run}", f"--input={lines}", "--config.constraints.coverage=0.2"],
        ["attend", f"--workdir={run}", "--source=It is late.", f"--output={tmp_path / 'maps.npz'}"],
        [
            "inspect",
            f"--workdir={run}",
            "--layers=decoder/0",
            f"--input={lines}",
            f"--output={tmp_path / 'states.npz'}",
        ],
        ["export", f"--workdir={run}", "--format=ctranslate2", f"--output={tmp_path / 'ct2'}"],
    ):
        assert main(command) == 2
        assert "model.architecture = decoder_only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("--config.model.num_encoder_layers=1", "num_encoder_layers = 1"),
        ("--config.model.tie_embeddings=decoder", "tie_embeddings = decoder"),
        ("--config.model.position=rotary", "position = rotary"),
        ("--config.alignments.guided=file", "architecture = decoder_only"),
        ("--config.inspection.layers_every=50", "architecture = decoder_only"),
    ],
)
def test_impossible_keys_are_named(flag, key, tmp_path, capsys):
    assert main(["train", *TINY_FLAGS, *ONE_STACK, flag, f"--workdir={tmp_path}"]) == 2
    assert key in capsys.readouterr().err
