"""Several workdirs as one model: commands, records, and what is refused."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from helpers.refusals import refused, refused_command
from helpers.runs import start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.data.sources import toy
from t2t_flax.evaluation.evaluate import record_name
from t2t_flax.evaluation.restore import load
from t2t_flax.training import loop

LINES = [source for source, _ in toy.pairs("test", 4)]
DEVICES = "--config.mesh.data=-1"
OTHER_SHAPE = dict(num_decoder_layers=2, d_model=24, num_heads=2, d_ff=20)


def trained(workdir, cache, **model):
    """The workdir of a run with checkpoints 1 and 2."""
    config = tiny_run(
        workdir,
        steps=2,
        model=model,
        data=dict(test="toy:test:4"),
        decode=dict(max_length_offset=3, beam_size=2),
        checkpoint=dict(every_steps=1, keep_last=2),
    )
    loop.train(start(config, workdir, cache), score=None)
    return workdir


@pytest.fixture(scope="module")
def first(tmp_path_factory, cache):
    return trained(tmp_path_factory.mktemp("runs") / "a", cache)


@pytest.fixture(scope="module")
def runs(first, cache):
    """Return workdirs of two runs with one tokenizer, different shapes and checkpoints 1 and 2."""
    return [first, trained(first.parent / "b", cache, **OTHER_SHAPE)]


def both(runs, **settings):
    keys = {f"ensembles.{name}": value for name, value in settings.items()}
    return load(runs[0], overrides={"ensembles.members": str(runs[1]), "mesh.data": "-1"} | keys)


def test_translate_with_two_workdirs(runs, capsys, monkeypatch, tmp_path):
    (tmp_path / "lines").write_text("".join(line + "\n" for line in LINES))
    words = [
        "translate",
        f"--workdir={runs[0]}",
        f"--workdir={runs[1]}",
        f"--input={tmp_path / 'lines'}",
        DEVICES,
    ]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == [t.text for t in both(runs).translate(LINES)]
    refused_command(
        [*words, f"--config.ensembles.members={runs[0]}"], "--workdir", "config.ensembles.members"
    )


@pytest.mark.slow
def test_serve_answers_with_all_models(runs):
    for package in ("fastapi", "httpx", "prometheus_client"):
        pytest.importorskip(package, reason="needs the extra serve and the tests' HTTP client")
    from helpers.http_server import serving

    model, alone = both(runs, weights="1,2"), load(runs[0], overrides={"mesh.data": "-1"})
    with serving({"both": model}) as server:
        answer = server.post("/api/translate", {"text": LINES}).json()
    found = [line["hypotheses"][0]["score"] for line in answer["translations"]]
    together, single = (
        [t.hypotheses[0].score for t in each.translate(LINES)] for each in (model, alone)
    )
    assert found == pytest.approx(together, abs=1e-3) and found != pytest.approx(single, abs=1e-2)


def test_models_are_named_alike_in_every_working_directory(runs, monkeypatch):
    """In records, their names, and outputs that are resumed."""
    absolute = both(runs)
    monkeypatch.chdir(runs[0].parent)
    relative = load("a", overrides={"ensembles.members": "b", "mesh.data": "-1"})
    assert relative.models == absolute.models
    assert (
        relative.config.value("ensembles.members")
        == absolute.config.value("ensembles.members")
        == str(runs[1])
    )
    assert record_name(relative, "test", "digest") == record_name(absolute, "test", "digest")
    monkeypatch.chdir(runs[0])
    assert load(".", overrides={"ensembles.members": "../b@1", "mesh.data": "-1"}).models[1][
        "workdir"
    ] == str(runs[1])


def test_the_weight_of_one_model_decides(runs):
    """With almost all of the weight, outputs are its own."""
    alone = [
        [t.text for t in load(run, overrides={"mesh.data": "-1"}).translate(LINES)] for run in runs
    ]
    assert alone[0] != alone[1]
    for weights, expected in (("1,1e-30", alone[0]), ("1e-30,1", alone[1])):
        assert [t.text for t in both(runs, weights=weights).translate(LINES)] == expected


def test_scores_are_the_mean_of_the_models(runs):
    """Token by token."""
    pair = ("It is late.", "Es ist das Haus.")
    (together,) = both(runs, weights="1,3").score([pair])
    each = [load(run, overrides={"mesh.data": "-1"}).score([pair])[0] for run in runs]
    first, second = (np.exp(score.token_log_probs) for score in each)
    np.testing.assert_allclose(
        np.exp(together.token_log_probs), 0.25 * first + 0.75 * second, rtol=1e-4
    )


@pytest.mark.slow
def test_records_name_models_steps_and_weights(runs, tmp_path):
    shared = [f"--workdir={runs[0]}", f"--workdir={runs[1]}@1", f"--output={tmp_path}", DEVICES]
    assert main(["evaluate", *shared, "--config.ensembles.weights=3,1"]) == 0
    assert main(["evaluate", *shared]) == 0
    assert main(["evaluate", *shared[:1], f"--output={tmp_path}", DEVICES]) == 0
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "eval").glob("*.json"))]
    assert len(records) == len({record["identity"] for record in records}) == 3
    models = {
        record["config"].get("ensembles", {}).get("weights"): record["checkpoint"].get("models")
        for record in records
    }
    counts = {
        record["config"].get("ensembles", {}).get("weights"): record["parameters"]
        for record in records
    }
    assert models[None] is None or len(models) == 3
    weighted = models["3,1"]
    assert [m["workdir"] for m in weighted] == [str(tmp_path), str(runs[1])] or [
        m["workdir"] for m in weighted
    ] == list(map(str, runs))
    assert [m["steps"] for m in weighted] == [[2], [1]] and [m["weight"] for m in weighted] == [
        0.75,
        0.25,
    ]
    assert counts["3,1"] == sum(m["parameters"] for m in weighted)
    nll = {
        record["config"].get("ensembles", {}).get("weights"): record["scores"]["nll"]
        for record in records
    }
    assert np.isfinite(list(nll.values())).all() and len(set(nll.values())) == 3


def test_all_models_are_on_the_mesh_of_the_first(runs):
    """One device, although there are others.

    As for a process that translates with its own devices alone.
    """
    members = {"ensembles.members": str(runs[1]), "mesh.data": "1"}
    devices = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jax.local_devices", lambda: devices)
        model = load(runs[0], overrides=members, local=True)
    assert {device for x in jax.tree.leaves(model.params) for device in x.devices()} == set(devices)


def test_a_model_that_the_mesh_cannot_divide_is_refused(runs):
    """The second one has two heads."""
    with refused("num_heads"):
        load(
            runs[0],
            overrides={"ensembles.members": str(runs[1]), "mesh.data": "-1", "mesh.tensor": "4"},
        )


@pytest.mark.smoke
def test_checkpoints_of_one_run(first):
    """DIR@STEP; the same one twice is refused."""
    model = load(first, overrides={"ensembles.members": f"{first}@1", "mesh.data": "-1"})
    assert [m["steps"] for m in model.models] == [[2], [1]]
    with refused("config.ensembles.weights"):
        load(first, overrides={"ensembles.members": f"{first}@2", "mesh.data": "-1"})
    with refused("step 7"):
        load(first, overrides={"ensembles.members": f"{first}@7", "mesh.data": "-1"})


@pytest.mark.slow
def test_models_that_cannot_decode_together_are_refused_by_name(runs, tmp_path, cache):
    def add(name, **keys):
        config = tiny_run(tmp_path / name, steps=1, checkpoint=dict(every_steps=1), **keys)
        loop.train(start(config, tmp_path / name, cache), score=None)
        together(name)

    def together(name):
        load(runs[0], overrides={"ensembles.members": str(tmp_path / name), "mesh.data": "-1"})

    config = json.loads((shutil.copytree(runs[1], tmp_path / "eos") / "config.json").read_text())
    config["data"]["source_eos"] = False
    (tmp_path / "eos" / "config.json").write_text(json.dumps(config))

    with refused("tok", "target tokenizer", str(runs[0])):
        add("tok", data=dict(vocab_size=280))
    with refused("data.source_eos", str(runs[0]), str(tmp_path / "eos")):
        together("eos")
    with refused("64 tokens"):
        add("learned", model=dict(position="learned", max_positions=64))
    short = {
        "decode.max_source_length": "32",
        "ensembles.members": str(tmp_path / "learned"),
        "mesh.data": "-1",
    }
    with refused("first --workdir"):  # outputs may be longer than sources
        load(runs[0], overrides=short)
    first = load(
        tmp_path / "learned", overrides={"ensembles.members": str(runs[0]), "mesh.data": "-1"}
    )
    assert first.max_source_length == 64


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"weights": "1,2,3"}, ["config.ensembles.weights", "2 weights"]),
        ({"weights": "1,-2"}, ["config.ensembles.weights"]),
        ({"weights": "1,x"}, ["config.ensembles.weights"]),
        ({"mean": "median"}, ["config.ensembles.mean", "log_probabilities"]),
    ],
)
def test_wrong_settings_are_named(runs, keys, names):
    with refused(*names):
        both(runs, **keys)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (
            ["attend", "--source=It is late.", "--output=a.npz", "--config.ensembles.members=b"],
            ["attention", "one model"],
        ),
        (
            ["export", "--format=safetensors", "--output=x", "--config.ensembles.members=b"],
            ["export", "one model"],
        ),
        (["attend", "--source=x", "--output=x.npz", "--workdir=b"], ["--workdir"]),
    ],
)
def test_commands_for_one_model_refuse_several(runs, words, names, monkeypatch):
    monkeypatch.chdir(runs[0].parent)
    command, *flags = words
    refused_command([command, "--workdir=a", *flags, DEVICES], *names)
    assert sorted(path.name for path in runs[0].parent.iterdir()) == ["a", "b"]


def test_ctranslate2_decodes_with_one_model(runs):
    search = {"decode.early_stopping": "beam_full", "decode.length_penalty": "power"}
    with refused("ctranslate2", "one model"):
        load(
            runs[0],
            overrides={"ensembles.members": str(runs[1]), "decode.engine": "ctranslate2"} | search,
        )


def test_parameters_in_bfloat16_translate_alike(runs):
    model = both(runs)
    assert [t.text for t in model.for_decoding().translate(LINES)] == [
        t.text for t in model.translate(LINES)
    ]
    assert dataclasses.replace(model).models == model.models
