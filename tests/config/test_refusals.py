"""Wrong config values are refused by a message that names them."""

import pytest
from helpers.refusals import assert_names, refused

from t2t_flax.config import default_config, load_config, override, resolve
from t2t_flax.config.overrides import _warn, check_average, check_patience
from t2t_flax.training.checkpoint_selection import regular_steps

LARGE = "9" * 30


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"model.d_modell": "3"}, ["'model.d_modell'", "'model.d_model'"]),
        ({"dropout": "0.1"}, ["'dropout'", "'model.dropout'"]),
        ({"optim.warmup_steps": "3"}, ["'optimizer.warmup_steps'"]),
        ({"model.d_model": "1.5"}, ["model.d_model", "1.5", "int"]),
        ({"model.dropout": "abc"}, ["model.dropout", "abc", "float"]),
        (
            {"data.joint_vocabulary": "perhaps"},
            ["data.joint_vocabulary", "perhaps", "true", "false"],
        ),
        ({"model.norm_placement": "mid"}, ["model.norm_placement", "'mid'", "post", "pre"]),
        ({"model.dropout": "1.5"}, ["model.dropout", "1.5", "0.99"]),
        ({"model.dropout": "nan"}, ["model.dropout", "nan"]),
        ({"train.steps": "0"}, ["train.steps", "0", "1"]),
        ({"train.steps": str(2**31)}, ["train.steps", str(2**31), str(2**31 - 1)]),
        ({"optimizer.lr_scale": "inf"}, ["optimizer.lr_scale", "inf"]),
        ({"optimizer.eps": "0"}, ["optimizer.eps", "1e-30"]),
        ({"optimizer.lr_scale": "0"}, ["optimizer.lr_scale", "1e-30"]),
        (
            {"optimizer.peak_lr": "0", "optimizer.schedule": "constant"},
            ["optimizer.peak_lr", "1e-30"],
        ),
        ({"seed.init": str(2**32)}, ["seed.init", str(2**32), str(2**32 - 1)]),
        ({"data.batch_tokens": LARGE}, ["data.batch_tokens", str(2**28)]),
        ({"data.train": "a\0b"}, ["data.train"]),
        ({"data.train": "\udcff"}, ["data.train"]),
        ({"model.num_heads": "7"}, ["model.d_model", "512", "model.num_heads", "7"]),
        ({"model.d_model": "511", "model.num_heads": "7"}, ["model.d_model", "511", "odd"]),
        (
            {"data.joint_vocabulary": "false"},
            ["model.tie_embeddings", "'all'", "data.joint_vocabulary"],
        ),
        ({"data.batch_tokens": "300"}, ["data.batch_tokens", "300"]),
        (
            {"model.position_offset": "2", "model.position": "learned"},
            ["model.position_offset", "2", "learned"],
        ),
        (
            {"model.position": "learned", "model.max_positions": "100"},
            ["model.max_positions", "100"],
        ),
        (
            {"optimizer.peak_lr": "1e-3"},
            ["optimizer.peak_lr", "0.001", "optimizer.schedule", "noam"],
        ),
        (
            {"optimizer.lr_scale": "2", "optimizer.schedule": "constant"},
            ["lr_scale", "2.0", "schedule", "noam"],
        ),
        ({"decode.n_best": "5"}, ["decode.n_best", "5", "decode.beam_size", "4"]),
        ({"decode.n_best": "2", "decode.strategy": "greedy"}, ["decode.n_best", "greedy"]),
        ({"mesh.fsdp": "-1"}, ["mesh", "-1"]),
        ({"mesh.tensor": "0"}, ["mesh", "0"]),
    ],
)
def test_wrong_overrides(keys, names):
    with refused(*names):
        resolve(override(default_config(), keys))


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (
            {"eval.metric": "bleu", "eval.patience": "3"},
            ["eval.patience", "data.valid", "eval.decode_every_steps"],
        ),
        (
            {"eval.metric": "loss", "eval.every_steps": "0", "checkpoint.keep_best": "2"},
            ["checkpoint.keep_best"],
        ),
        ({"eval.patience": "3", "data.valid": ""}, ["eval.patience", "data.valid"]),
        (
            {"eval.decode_every_steps": "5", "data.valid": ""},
            ["eval.decode_every_steps", "data.valid"],
        ),
    ],
)
def test_evaluations_that_a_new_run_lacks(keys, names):
    with refused(*names):
        load_config("toy", keys)


@pytest.fixture
def warned(caplog):
    """Asserts that the warnings of a call name these; no names: that there is none."""

    def check(call, *names):
        _warn.cache_clear()
        caplog.clear()
        call()
        if names:
            assert_names(caplog.text, *names)
        else:
            assert not caplog.text

    return check


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (
            {"eval.patience": "1", "eval.every_steps": "1801"},
            ["eval.patience", "eval.every_steps", "1800"],
        ),
        ({"eval.patience": "5"}, ["eval.patience", "5", "4", "1800"]),
        ({"optimizer.warmup_steps": "1801"}, ["optimizer.warmup_steps", "train.steps"]),
        ({"optimizer.warmup_steps": "1800"}, []),
        ({"eval.patience": "4", "checkpoint.average_last": "4"}, []),
        (
            {"checkpoint.average_last": "5"},
            ["checkpoint.average_last", "train.steps", "1800", "every_steps", "450", "4"],
        ),
        (
            {"checkpoint.average_last": "2", "checkpoint.every_steps": "0"},
            ["average_last", "every_steps"],
        ),
    ],
)
def test_what_a_new_run_never_reaches_is_said_at_its_start(keys, names, warned):
    warned(lambda: load_config("toy", keys), *names)


@pytest.mark.parametrize(
    ("keys", "updates_per_epoch", "most"),
    [
        ({"checkpoint.every_steps": 450}, 7, 4),
        ({"checkpoint.every_steps": 400}, 7, 5),
        ({"checkpoint.every_steps": 0}, 7, 1),
        ({"checkpoint.every_steps": 0, "checkpoint.every_epochs": 1}, 500, 3),
        ({"checkpoint.every_steps": 450, "checkpoint.every_epochs": 1}, 300, 8),
    ],
)
def test_an_average_has_at_most_the_regular_checkpoints_of_the_run(
    keys, updates_per_epoch, most, warned
):
    config = load_config("toy").with_values(keys)
    assert len(list(regular_steps(config, updates_per_epoch, 1800))) == most
    warned(
        lambda: check_average(
            config.with_values({"checkpoint.average_last": most}), updates_per_epoch
        )
    )
    more = config.with_values({"checkpoint.average_last": most + 1})
    warned(
        lambda: check_average(more, updates_per_epoch), "checkpoint.average_last", str(most), "1800"
    )
    warned(lambda: check_average(more.with_values({"data.test": ""}), updates_per_epoch))
    if keys.get("checkpoint.every_epochs"):
        warned(lambda: check_average(more))


def test_evaluations_by_epochs_are_counted_when_an_epoch_is_known(warned):
    config = load_config("toy", {"eval.every_epochs": "1", "eval.patience": "5"})
    warned(lambda: check_patience(config, 600))  # 4 by updates, and 2 by epochs alone
    warned(lambda: check_patience(config, 900), "eval.patience", "5", "4")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"model": {"dropout": "high"}}, ["config.model.dropout", "'high'", "float"]),
        ({"optim": {}}, ["'optim'", "'optimizer'"]),
        ({"model": 3}, ["config.model"]),
        ({"train": {"steps": 10**5000}}, ["config.train.steps"]),
    ],
)
def test_wrong_values_of_a_config_file(values, names):
    with refused(*names):
        resolve(values)


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("a=x; b.en,b.de", ["'b.en,b.de'"]),
        ("a.en,a.de; b=b.en,b.de", ["first"]),
        ("a=x; A=y", ["'A'"]),
        ("test=x", ["'test'"]),
        ("Valid=x", ["'Valid'"]),
        ("a=", ["'a'"]),
        ("..=x; b=y", ["'..'"]),
        ("a\0b=x", []),
        (f"{'n' * 65}=x", ["n" * 65]),
    ],
)
def test_wrong_names_of_test_sets(spec, names):
    with refused("data.test", *names):
        resolve({"data": {"test": spec}})


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("def get_config(:", ["c.py", "line 1"]),
        ("def get_config():\n    return 3", ["c.py"]),
        ("def get_config():\n    return {3: 4}", ["3"]),
        ("def get_config():\n    return None", ["c.py"]),
        ("def get_config():\n    return get_config()", ["c.py", "line 2"]),
        ("def get_config():\n    return {}['huge']", ["c.py", "line 2", "'huge'"]),
        ("get_config = 3", ["c.py"]),
        ("raise SystemExit(0)", ["c.py", "line 1"]),
        ("1 / 0", ["c.py", "line 1"]),
        ("import nowhere_at_all", ["c.py", "nowhere_at_all"]),
        ("x = 1", ["c.py", "get_config()"]),
        ("from t2t_flax.config import default_config\ndef get_config():\n    default_config().model.d_modell = 3", ["c.py", "d_modell"]),
    ],
)  # fmt: skip
def test_wrong_config_files(tmp_path, body, names):
    path = tmp_path / "c.py"
    path.write_text(body + "\n")
    with refused(*names):
        load_config(str(path))


def test_paths_of_no_config(tmp_path):
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "junk.json").write_bytes(b"\xff\xfe")
    (tmp_path / "list.json").write_text("[]")
    for name in ("folder.py", "junk.json", "list.json", "missing.json", "missing.py"):
        with refused(name):
            load_config(str(tmp_path / name))
