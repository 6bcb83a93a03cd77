"""Configs, commands, sweeps and records from before keys were renamed keep working (version_1/ holds some)."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.config import default_config, load_config, override, renamed, resolve
from t2t_flax.config.presets import preset
from t2t_flax.config.renamed import SCHEMA_VERSION
from t2t_flax.config.schema import fields
from t2t_flax.data.preprocess import Policies, recipe_of
from t2t_flax.errors import UserError
from t2t_flax.evaluation.compare import compare, read_record
from t2t_flax.evaluation.records import question

VERSION_1 = Path(__file__).parent / "version_1"
STORED = json.loads((VERSION_1 / "presets.json").read_text())
OLD_VALUES = [(key, old, new) for key, values in renamed.VALUES.items() for old, new in values.items()]


def stored_preset(name: str) -> dict:
    """config.json of a preset as version 1 wrote it."""
    values = json.loads(json.dumps(STORED["default"]))
    for key, value in STORED["presets"][name].items():
        group, item = key.split(".")
        values[group][item] = value
    return values


def value_of(config, name: str):
    group, item = name.split(".")
    return getattr(getattr(config, group), item)


def test_old_names_are_not_reused_for_other_keys():
    assert not renamed.KEYS.keys() & fields().keys()
    assert set(renamed.KEYS.values()) <= fields().keys()
    for key, values in renamed.VALUES.items():
        choices = fields()[key].metadata["choices"]
        if choices:
            assert set(values.values()) <= set(choices) and not values.keys() & set(choices)
        for value in values.values():
            config_lib.check_value(key, value)


def test_renamed_keys_stay_in_their_group_and_have_unique_names():
    assert all(old.split(".")[0] == new.split(".")[0] for old, new in renamed.KEYS.items())
    items = [old.split(".")[1] for old in renamed.KEYS]
    assert len(set(items)) == len(items)


@pytest.mark.parametrize("name", STORED["presets"])
def test_stored_version_1_configs_equal_current_presets(name):
    assert config_lib.from_json(json.dumps(stored_preset(name))) == resolve(preset(name))


def test_every_old_key_of_a_stored_config_is_known():
    for group, items in STORED["default"].items():
        for item in items if isinstance(items, dict) else ():
            assert renamed.current_key(f"{group}.{item}") in fields() | renamed.REMOVED


def test_stored_version_1_config_can_be_passed_as_config(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(stored_preset("flax_wmt")))
    assert load_config(str(file)) == resolve(preset("flax_wmt"))


def test_new_configs_are_stored_as_the_current_version():
    values = config_lib.as_json(config_lib.Config())
    assert values["schema_version"] == SCHEMA_VERSION and renamed.upgraded(values) == values
    assert "lr_scale" in values["optimizer"] and "constant" not in values["optimizer"]


def test_upgrade_preserves_unknown_parts_and_its_argument():
    stored = {"optimizer": {"constant": 2.0, "other": 1}, "notes": "text", "old_group": {"norm": "pre"}}
    before = json.dumps(stored)
    assert renamed.upgraded(stored) == {
        "optimizer": {"lr_scale": 2.0, "other": 1},
        "notes": "text",
        "old_group": {"norm": "pre"},
        "schema_version": SCHEMA_VERSION,
    }
    assert json.dumps(stored) == before


@pytest.mark.parametrize("old", [key for key in renamed.KEYS if key != "log.tensorboard"])
def test_old_keys_work_as_overrides(old):
    new = renamed.KEYS[old]
    default = fields()[new].default
    choices = fields()[new].metadata["choices"]
    value = choices[1] if choices else not default if isinstance(default, bool) else default + 2
    assert renamed.current_overrides({old: str(value)}) == {new: str(value)}
    assert (
        override(default_config(), {old: str(value)}).to_dict()
        == override(default_config(), {new: str(value)}).to_dict()
    )


@pytest.mark.parametrize(("key", "old", "new"), OLD_VALUES)
def test_old_values_work_as_overrides(key, old, new):
    group, item = key.split(".")
    assert override(default_config(), {key: old})[group][item] == new
    (old_key,) = [name for name, current in renamed.KEYS.items() if current == key]
    assert override(default_config(), {old_key: old})[group][item] == new
    assert renamed.original_value(key, new) == old


@pytest.mark.parametrize(("old", "new"), [("false", ""), ("0", ""), ("True", "tensorboard"), (True, "tensorboard")])
def test_switch_of_tensorboard_is_a_list_of_trackers(old, new, tmp_path):
    assert renamed.current_overrides({"log.tensorboard": old}) == {"log.trackers": new}
    for version in (1, 2):
        stored = renamed.upgraded({"schema_version": version, "log": {"tensorboard": new != "", "every_steps": 5}})
        assert stored["log"] == {"trackers": new, "every_steps": 5}
    file = tmp_path / "c.py"
    file.write_text(
        "from t2t_flax.config import default_config\n"
        f"def get_config():\n    c = default_config()\n    c.log.tensorboard = {new != ''}\n    return c\n"
    )
    assert load_config(str(file)).log.trackers == new


def test_commands_note_renamed_keys_on_standard_error(capsys):
    renamed._note.cache_clear()
    parser = arguments.parser("train", "")
    _, overrides = arguments.parse(parser, ["--config.optimizer.constant=2", "--config.decode.stop", "bound"])
    assert overrides == {"optimizer.lr_scale": "2", "decode.early_stopping": "exact"}
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "note: --config.optimizer.constant is now --config.optimizer.lr_scale",
        "note: --config.decode.stop is now --config.decode.early_stopping",
        "note: --config.decode.early_stopping=bound is now --config.decode.early_stopping=exact",
    ]


def test_key_under_both_names_is_refused():
    with pytest.raises(UserError, match="optimizer.constant is the old name of optimizer.lr_scale"):
        override(default_config(), {"optimizer.constant": "2", "optimizer.lr_scale": "2"})
    with pytest.raises(UserError, match="model.norm is the old name of config.model.norm_placement"):
        resolve({"model": {"norm": "pre", "norm_placement": "pre"}})


def test_config_files_may_set_and_read_old_keys(tmp_path, capsys):
    renamed._note.cache_clear()
    file = tmp_path / "old.py"
    file.write_text(
        "from t2t_flax.config import default_config\n\n\ndef get_config():\n    c = default_config()\n"
        "    c.optimizer.constant = 2.0\n    c.optimizer.constant *= 2\n    c.decode.stop = 'bound'\n"
        "    c.model.update({'vocab_multiple': 8})\n    c['data']['too_long'] = 'cut'\n    return c\n"
    )
    config = load_config(str(file))
    assert (config.optimizer.lr_scale, config.decode.early_stopping) == (4.0, "exact")
    assert (config.model.pad_vocab_to_multiple, config.data.on_too_long) == (8, "truncate")
    assert capsys.readouterr().err.count("the config key constant is now lr_scale") == 1


def test_config_files_still_cannot_set_unknown_keys(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(
        "from t2t_flax.config import default_config\n\n\ndef get_config():\n    c = default_config()\n"
        "    c.model.constant = 2.0\n    return c\n"
    )
    with pytest.raises(UserError, match="line 6: AttributeError"):
        load_config(str(file))


def test_removed_keys_are_accepted_and_ignored(tmp_path, capsys):
    key = "data.batch_processes"
    assert key in renamed.REMOVED and key not in fields()
    for version in (1, 2):
        assert renamed.upgraded({"schema_version": version, "data": {"batch_processes": 4, "train": "t"}})["data"] == {
            "train": "t"
        }
    assert renamed.current_overrides({key: "4", "data.train": "t"}) == {"data.train": "t"}
    assert resolve({"data": {"batch_processes": 3}}) == resolve({})
    renamed._note.cache_clear()
    renamed.current_overrides({key: "4"}, note="--config.")
    assert "--config.data.batch_processes has no effect any more: one thread" in capsys.readouterr().err
    file = tmp_path / "c.py"
    file.write_text(
        "from t2t_flax.config import default_config\n"
        "def get_config():\n    c = default_config()\n    c.data.batch_processes = 2\n    return c\n"
    )
    assert load_config(str(file)) == resolve({})


def test_plain_dicts_of_old_keys_resolve():
    config = resolve({"data": {"batch_count": "padded_max", "processes": 3}, "mesh": {"fsdp_shards": "optimizer"}})
    assert (config.data.batch_size_counts, config.data.num_workers) == ("padded_tokens", 3)
    assert config.mesh.fsdp_mode == "zero1"


def test_old_records_are_comparable_with_new_ones(tmp_path):
    old = VERSION_1 / "test-6-mean2.json"
    record = read_record(old)
    assert (
        record["config"]["decode"]["early_stopping"] == "exact" and record["config"]["schema_version"] == SCHEMA_VERSION
    )
    for name in ("hyp", "ref"):
        (tmp_path / f"test-6-mean2.{name}.txt").write_bytes((VERSION_1 / f"test-6-mean2.{name}.txt").read_bytes())
    new = tmp_path / "test-6-mean2.json"
    new.write_text(json.dumps(record))
    stored = json.loads(old.read_text())
    assert "stop" in stored["config"]["decode"]
    assert question(stored) == question(record)
    assert question(record)["settings"] == {
        "decode.max_length_offset": 8, "decode.max_length_ratio": 1.2, "eval.bootstrap_samples": 20
    }  # fmt: skip
    assert compare(old, new)["difference"] == 0.0


def test_stores_with_digests_of_old_names_are_reused():
    tokenizers = SimpleNamespace(digest="t")
    recipe, digest = recipe_of("f", tokenizers, Policies(24, "truncate", "drop"))
    before = {"format_version": 1, "source_fingerprint": "f", "tokenizer_digest": "t"}
    before |= {"max_length": 24, "too_long": "cut", "empty_lines": "drop", "source_eos": True}
    assert recipe == before and digest == hashlib.sha256(json.dumps(before).encode()).hexdigest()
