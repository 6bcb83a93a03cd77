"""Configuration: errors name the key, and configs are stored as resolved."""

import dataclasses
import json
import re

import pytest

from t2t_flax import config as config_lib
from t2t_flax.config import Config, default_config, load_config, override, resolve
from t2t_flax.config.schema import fields
from t2t_flax.errors import UserError


def test_defaults_are_the_papers_base():
    c = resolve(default_config())
    assert c == Config()
    m = c.model
    assert (m.num_encoder_layers, m.num_decoder_layers, m.d_model, m.d_ff, m.num_heads) == (6, 6, 512, 2048, 8)
    assert (m.dropout, m.norm_placement, m.position, m.tie_embeddings) == (0.1, "post", "sinusoid_interleaved", "all")
    o = c.optimizer
    assert (o.schedule, o.lr_scale, o.warmup_steps, o.b1, o.b2, o.eps) == ("noam", 1.0, 4000, 0.9, 0.98, 1e-9)
    assert (c.loss.label_smoothing, c.data.batch_tokens, c.decode.beam_size, c.decode.alpha) == (0.1, 25000, 4, 0.6)


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


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model.d_modell": "3"}, "unknown config key 'model.d_modell'. Did you mean 'model.d_model'?"),
        ({"dropout": "0.1"}, "unknown config key 'dropout'. Did you mean 'model.dropout'?"),
        ({"optim.warmup_steps": "3"}, "Did you mean 'optimizer.warmup_steps'?"),
        ({"model.d_model": "1.5"}, "--config.model.d_model=1.5: expected int"),
        ({"model.dropout": "abc"}, "--config.model.dropout=abc: expected float"),
        ({"data.joint_vocabulary": "perhaps"}, "expected true or false"),
        ({"model.norm_placement": "mid"}, "config.model.norm_placement = 'mid': expected one of post, pre"),
        ({"model.dropout": "1.5"}, "config.model.dropout = 1.5: must be at most 0.99"),
        ({"train.steps": "0"}, "config.train.steps = 0: must be at least 1"),
        ({"model.num_heads": "7"}, "config.model.d_model = 512 is not a multiple of config.model.num_heads = 7"),
        ({"model.d_model": "511", "model.num_heads": "7"}, "config.model.d_model = 511 is odd"),
        ({"data.joint_vocabulary": "false"}, "config.model.tie_embeddings = 'all' needs config.data.joint_vocabulary"),
        ({"data.batch_tokens": "300"}, "config.data.batch_tokens = 300 must hold at least two"),
        (
            {"model.position_offset": "2", "model.position": "learned"},
            "position_offset = 2 is for config.model.position = sinusoid_interleaved or sinusoid_halves; it is learned",
        ),
        ({"model.position": "learned", "model.max_positions": "100"}, "config.model.max_positions = 100"),
        (
            {"optimizer.peak_lr": "1e-3"},
            "peak_lr = 0.001 is for all but config.optimizer.schedule = noam; it is noam",
        ),
        (
            {"optimizer.lr_scale": "2", "optimizer.schedule": "inverse_sqrt"},
            "lr_scale = 2.0 is for config.optimizer.schedule = noam",
        ),
        ({"decode.n_best": "5"}, "config.decode.n_best = 5 is more than config.decode.beam_size = 4"),
        ({"decode.n_best": "2", "decode.strategy": "greedy"}, "greedy search has one output"),
        ({"mesh.fsdp": "-1"}, "one of them may be -1"),
        ({"mesh.tensor": "0"}, "none may be 0"),
    ],
)
def test_wrong_values_are_refused_by_key(keys, message):
    with pytest.raises(UserError, match=re.escape(message)):
        resolve(override(default_config(), keys))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"eval.metric": "bleu", "eval.patience": "3"},
            "patience = 3 .* never computed: set config.data.valid and eval.decode_every_steps",
        ),
        (
            {"eval.metric": "loss", "eval.every_steps": "0", "checkpoint.keep_best": "2"},
            "keep_best = 2 .* never computed",
        ),
        ({"eval.patience": "3", "data.valid": ""}, "patience = 3 .* never computed: set config.data.valid"),
        ({"eval.decode_every_steps": "5", "data.valid": ""}, "decode_every_steps = 5 needs config.data.valid"),
    ],
)
def test_a_new_run_is_evaluated_as_its_keys_need(keys, message):
    with pytest.raises(UserError, match=message):
        load_config("toy", keys)


def test_values_from_a_config_file_are_checked():
    with pytest.raises(UserError, match="config.model.dropout = 'high': expected float"):
        resolve({"model": {"dropout": "high"}})
    with pytest.raises(UserError, match="config has no group 'optim'. Did you mean 'optimizer'?"):
        resolve({"optim": {}})
    with pytest.raises(UserError, match="config.model is a group of keys"):
        resolve({"model": 3})


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
    with pytest.raises(UserError, match=r"c.py line \d+: KeyError: 'huge'"):
        load_config(path + ":huge")
    with pytest.raises(UserError, match="d_modell"):
        load_config(
            write(tmp_path, "def get_config():\n    c = default_config()\n    c.model.d_modell = 3\n    return c\n")
        )
    with pytest.raises(UserError, match="no file"):
        load_config(str(tmp_path / "missing.py"))
    with pytest.raises(UserError, match=r"does not define get_config\(\)"):
        load_config(write(tmp_path, "x = 1\n"))


@pytest.mark.parametrize(
    "name", ["toy.py", "text.py", "wmt14_ende.py:base", "wmt14_ende.py:big", "wmt14_enfr.py:base", "wmt14_enfr.py:big"]
)
def test_shipped_configs_resolve(name):
    from pathlib import Path

    config = load_config(str(Path(__file__).parents[2] / "configs" / name), {"data.train": "a,b"})
    if name.startswith("wmt14"):
        base = name.endswith("base")
        assert config.model.d_model == (512 if base else 1024)
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
    with pytest.raises(UserError, match="not the config.json of a run"):
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
