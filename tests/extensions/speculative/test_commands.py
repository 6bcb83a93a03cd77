"""A draft beside a trained model: commands, records, and what is refused."""

import dataclasses
import json

import jax
import pytest
from helpers.runs import start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.data.sources import toy
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import load
from t2t_flax.model_forms import run_folder
from t2t_flax.training import loop

TOY = "pretrained:toy"
GREEDY = {"decode.strategy": "greedy"}
LINES = [source for source, _ in toy.pairs("test", 300)]


def trained(folder, cache, **groups):
    config = tiny_run(folder, steps=1, checkpoint=dict(every_steps=1), **groups)
    loop.train(start(config, folder, cache), score=None)
    return folder


@pytest.fixture(scope="module")
def draft(tmp_path_factory, cache):
    """A run of one update with the tokenizer of the model: its proposals are bad."""
    tokenizer = str(run_folder(TOY) / "tokenizer")
    return trained(
        tmp_path_factory.mktemp("draft") / "run", cache, data=dict(tokenizer_model=tokenizer, vocab_size=2000)
    )


def keys_of(draft, **more):
    return GREEDY | {"decode.strategy": "speculative", "speculative.draft": str(draft)} | more


def on_one_device(loaded):
    """As a user's machine has one."""
    mesh = mesh_lib.make_mesh(dataclasses.replace(loaded.config.mesh, data=1), jax.devices()[:1])
    params = jax.device_put(jax.device_get(loaded.params), mesh_lib.named(mesh, mesh_lib.REPLICATED))
    return dataclasses.replace(loaded, mesh=mesh).with_params(params)


@pytest.fixture(scope="module")
def greedy():
    return load(TOY, overrides=GREEDY).translate(LINES)


@pytest.mark.parametrize(("good", "tokens", "batch_size"), [(True, 4, 32), (False, 1, 32), (True, 2, 1)])
def test_translations_are_those_of_greedy_search(good, tokens, batch_size, draft, greedy):
    """With a bad draft, and with the model itself."""
    count = 300 if batch_size > 1 else 20
    more = {"speculative.tokens": str(tokens), "decode.batch_size": str(batch_size)}
    found = load(TOY, overrides=keys_of(TOY if good else draft, **more)).translate(LINES[:count])
    assert [t.hypotheses[0].tokens for t in found] == [t.hypotheses[0].tokens for t in greedy[:count]]
    assert [t.hypotheses[0].score for t in found] == pytest.approx(
        [t.hypotheses[0].score for t in greedy[:count]], abs=1e-4
    )


def test_beginnings_are_kept(draft):
    prefixes = ["Das ist", "", "Am Montag"] * 4
    results = [
        [t.text for t in load(TOY, overrides=keys).translate(LINES[:12], prefixes=prefixes)]
        for keys in (GREEDY, keys_of(draft), keys_of(TOY))
    ]
    assert results[0] == results[1] == results[2]
    assert all(text.startswith(prefix) for text, prefix in zip(results[0], prefixes, strict=True))


@pytest.mark.smoke
@pytest.mark.parametrize("command", ["translate", "translate_file"])
def test_commands_that_translate(command, greedy, tmp_path, capsys):
    (tmp_path / "lines").write_text("".join(line + "\n" for line in LINES[:20]))
    words = [f"--config.{key}={value}" for key, value in keys_of(TOY).items()]
    files = [f"--input={tmp_path / 'lines'}", f"--output={tmp_path / 'out'}"]
    assert main([command, f"--workdir={TOY}", *files, *words]) == 0
    assert (tmp_path / "out").read_text().splitlines() == [t.text for t in greedy[:20]]


@pytest.mark.slow
def test_records_name_the_draft_and_have_the_scores_of_the_model(draft, tmp_path, monkeypatch):
    """By its absolute path, so that the record is the same in every working directory."""
    scores = []
    monkeypatch.chdir(draft.parent)
    for keys in (GREEDY, keys_of(draft.name)):
        words = [
            f"--config.{key}={value}"
            for key, value in (keys | {"data.test": "toy:test:30", "mesh.cpu_devices": "1"}).items()
        ]
        folder = tmp_path / keys["decode.strategy"]
        assert main(["evaluate", f"--workdir={TOY}", f"--output={folder}", *words]) == 0
        (path,) = (folder / "eval").glob("*.json")
        record = json.loads(path.read_text())
        scores.append(record["scores"])
    assert scores[0] == scores[1]
    assert [model["workdir"] for model in record["checkpoint"]["models"]][1] == str(draft)


@pytest.mark.slow
def test_a_server_translates_with_a_draft(draft, greedy):
    for package in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
        pytest.importorskip(package, reason="needs the extra serve and the tests' HTTP client")
    from helpers.http_server import serving

    run = on_one_device(load(TOY, overrides=keys_of(draft, **{"decode.max_source_length": "40"})))
    with serving({"toy": run}) as server:
        answer = server.post("/translate", {"q": LINES[:5], "source": "en", "target": "de"}).json()
        assert answer["translatedText"] == [t.text for t in greedy[:5]]
        more = server.post("/translate", {"q": LINES[:5], "source": "en", "target": "de", "alternatives": 2})
        assert more.status_code == 400 or not any(more.json().get("alternatives", []))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"speculative.draft": ""}, "speculative needs config.speculative.draft"),
        (
            {"decode.strategy": "beam"},
            "config.speculative.draft = .* is for config.decode.strategy = speculative; it is beam",
        ),
        ({"decode.strategy": "sample"}, "is for config.decode.strategy = speculative; it is sample"),
        ({"decode.n_best": "2"}, "speculative search has one output"),
        ({"decode.engine": "ctranslate2"}, "decode.engine = ctranslate2: .*decode.engine = jax"),
        ({"constraints.no_repeat_ngram": "3"}, "constraints.no_repeat_ngram = 3: .* no rules"),
        ({"constraints.lines": "json"}, "constraints.lines = json: .* no rules"),
        ({"ensembles.members": TOY}, "ensembles.members = pretrained:toy: .* one model"),
        ({"speculative.tokens": "0"}, "speculative.tokens = 0: must be at least 1"),
    ],
)
def test_what_does_not_go_together_is_named(keys, message):
    with pytest.raises(UserError, match=message):
        load(TOY, overrides=keys_of(TOY) | keys)


@pytest.mark.slow
def test_a_draft_that_does_not_fit_is_named(tmp_path, cache, draft):
    other = trained(tmp_path / "tok", cache)
    with pytest.raises(UserError, match="tok has another target tokenizer than .*tokenizer_model"):
        load(TOY, overrides=keys_of(other))
    data = dict(tokenizer_model=str(run_folder(TOY) / "tokenizer"), vocab_size=2000)
    recurrent = trained(tmp_path / "gru", cache, data=data, model=dict(mixer="gru"))
    with pytest.raises(UserError, match="gru has config.model.mixer = gru, whose state cannot go back"):
        load(TOY, overrides=keys_of(recurrent))
    with pytest.raises(UserError, match="holds no run"):
        load(TOY, overrides=keys_of(tmp_path / "nothing"))


def test_what_needs_one_model_says_so(capsys, tmp_path):
    words = [f"--config.{key}={value}" for key, value in keys_of(TOY).items()]
    assert main(["export", f"--workdir={TOY}", "--format=safetensors", f"--output={tmp_path / 'x'}", *words]) == 2
    assert "export needs one model" in capsys.readouterr().err
