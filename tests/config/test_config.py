"""Configuration: errors name the key, and configs are stored as resolved."""

import dataclasses
import json
from pathlib import Path

import pytest
from helpers.refusals import refused

from t2t_flax import config as config_lib
from t2t_flax.config import Config, default_config, load_config, override, resolve
from t2t_flax.config.schema import fields


def test_defaults_are_the_papers_base():
    c = resolve(default_config())
    assert c == Config()
    m = c.model
    assert (m.num_encoder_layers, m.num_decoder_layers, m.d_model, m.d_ff, m.num_heads) == (
        6,
        6,
        512,
        2048,
        8,
    )
    assert (m.dropout, m.norm_placement, m.position, m.tie_embeddings) == (
        0.1,
        "post",
        "sinusoid_interleaved",
        "all",
    )
    o = c.optimizer
    assert (o.schedule, o.lr_scale, o.warmup_steps, o.b1, o.b2, o.eps) == (
        "noam",
        1.0,
        4000,
        0.9,
        0.98,
        1e-9,
    )
    assert (c.loss.label_smoothing, c.data.batch_tokens, c.decode.beam_size, c.decode.alpha) == (
        0.1,
        25000,
        4,
        0.6,
    )


def test_every_key_has_a_description():
    for name, item in fields().items():
        assert len(item.metadata["doc"]) > 8, name


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("model.dropout", "0.2", 0.2),
        ("train.steps", "1_000", 1000),
        ("data.joint_vocabulary", "true", True),
        ("data.train", "a.en,a.de", "a.en,a.de"),
        ("optimizer.max_grad_norm", "1e-3", 1e-3),
    ],
)
def test_overrides_have_the_type_of_their_key(key, text, value):
    group, name = key.split(".")
    actual = getattr(getattr(resolve(override(default_config(), {key: text})), group), name)
    assert actual == value and type(actual) is type(value)


def write(tmp_path, body):
    path = tmp_path / "c.py"
    path.write_text("from t2t_flax.config import default_config\n" + body)
    return str(path)


def test_config_files_with_variants(tmp_path):
    path = write(
        tmp_path,
        "def get_config(size='base'):\n    c = default_config()\n    c.model.d_ff = {'base': 8, 'big': 16}[size]\n    return c\n",
    )
    assert load_config(path).model.d_ff == 8
    assert load_config(path + ":big", {"train.steps": "7"}).model.d_ff == 16
    colon = tmp_path / "a:b.py" / "c:d.py"
    colon.parent.mkdir()
    Path(path).rename(colon)
    assert load_config(str(colon)).model.d_ff == 8 and load_config(f"{colon}:big").model.d_ff == 16
    with refused(str(colon.parent / "x.py"), "--config=toy"):
        load_config(str(colon.parent / "x.py:big"))
    with refused("no/wu2021_tiny.py", "--config=wu2021_tiny"):
        load_config("no/wu2021_tiny.py")


@pytest.mark.parametrize(
    "name",
    [
        "toy.py",
        "text.py:29000",
        "wmt14_ende.py:base",
        "wmt14_ende.py:big",
        "wmt14_enfr.py:base",
        "wmt14_enfr.py:big",
    ],
)
def test_shipped_configs_resolve(name):
    config = load_config(str(Path(__file__).parents[2] / "configs" / name), {"data.train": "a,b"})
    if name.startswith("wmt14"):
        base = name.endswith("base")
        assert (config.model.d_model, config.model.num_heads) == ((512, 8) if base else (1024, 16))
        assert config.train.steps == (100_000 if base else 300_000)
        assert (config.model.dropout, config.data.vocab_size) == {
            "wmt14_ende.py:base": (0.1, 37_000),
            "wmt14_ende.py:big": (0.3, 37_000),
            "wmt14_enfr.py:base": (0.1, 32_000),
            "wmt14_enfr.py:big": (0.1, 32_000),
        }[name]
        assert config.checkpoint.average_last == (5 if base else 20)


def test_json_round_trip():
    config = resolve(override(default_config(), {"model.dropout": "0.5"}))
    text = config_lib.to_json(config)
    assert config_lib.from_json(text) == config
    with refused("config.json"):
        config_lib.from_json(json.dumps({"model": {}}))


def test_only_mutable_keys_may_change_on_resume():
    a = Config()
    mutable = dataclasses.replace(
        a, train=dataclasses.replace(a.train, steps=7), mesh=dataclasses.replace(a.mesh, fsdp=2)
    )
    assert config_lib.immutable_differences(a, mutable) == {}
    assert set(config_lib.differences(a, mutable)) == {"train.steps", "mesh.fsdp"}
    changed = dataclasses.replace(a, seed=dataclasses.replace(a.seed, data=3))
    assert config_lib.immutable_differences(a, changed) == {"seed.data": (0, 3)}
