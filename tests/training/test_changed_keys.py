"""What may change when a run is resumed.

Every mutable key can, and a change that is refused leaves the run as it was.
"""

import dataclasses
import importlib.util
import json
import shutil
import types

import jax
import pytest
from etils import epath
from helpers.other_values import with_other_value
from helpers.refusals import assert_names, refused
from helpers.runs import SHORT_SEARCH, tiny_run

from t2t_flax import api
from t2t_flax import config as config_lib
from t2t_flax.config.keys import MODEL, TRAINING
from t2t_flax.config.schema import fields, keys_that_change
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import load
from t2t_flax.training import precision
from t2t_flax.training.workdir import adopt_config, read_config

MUTABLE = [key for key, item in fields().items() if item.metadata["mutable"]]
IMMUTABLE = [key for key in fields() if key not in MUTABLE]
SCHEDULES = {
    "noam": {"optimizer.schedule": "noam"},
    "wsd": {
        "optimizer.schedule": "wsd",
        "optimizers.decay_steps": "60",
        "optimizers.cooldown_steps": "20",
    },
}


def config_of(schedule="wsd"):
    data = dict(
        train="en-de=toy:train:150; en-de.more=toy:train:20", vocab_size=400, batch_tokens=512
    )
    languages = dict(directions="by_name, valid=en-de")
    others = dict(languages=languages, mixtures=dict(shares="en-de=3, en-de.more=1"))
    base = tiny_run(
        None, steps=1, data=data, mesh=dict(data=-1), eval=dict(every_steps=1, patience=5), **others
    )
    values = SHORT_SEARCH | SCHEDULES[schedule]
    return config_lib.resolve(config_lib.override(config_lib.to_config_dict(base), values))


def train(config, workdir):
    """Train in this process, which keeps its devices whatever mesh.cpu_devices says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "_prepare_process", lambda config: [])
        return api.train(config, workdir)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Copy a run of one update, by the name of its schedule, to a folder where it may resume."""
    folder = tmp_path_factory.mktemp("trained")

    def copy(schedule, target):
        if not (folder / schedule).exists():
            train(config_of(schedule), folder / schedule)
            (folder / schedule / "complete.json").unlink()
        return shutil.copytree(folder / schedule, target)

    return copy


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def changed_together(config, keys):
    """(keys, config) until all keys have been changed: each time as many as go together."""
    left = list(keys)
    while left:
        changed, taken = config, []
        for key in left:
            try:
                candidate = with_other_value(changed, key)
            except UserError:
                continue
            if all(candidate.value(name) != config.value(name) for name in (*taken, key)):
                changed, taken = candidate, [*taken, key]
        assert taken, left
        left = [key for key in left if key not in taken]
        yield taken, changed


NOAM = "optimizer.lr_scale"
"""The only key that needs the schedule noam."""

PARTS = {
    "of the loop": ("train", "eval", "checkpoint", "log", "distributed", "inspection", "trackers"),
    "after it": ("decode", "planning", "ctranslate2", "languages", "alignments", "learned_metrics"),
}


def part_of(key: str) -> str:
    """The keys that are changed in the same runs: a failure names the part."""
    group = key.split(".")[0]
    return (
        key
        if key == NOAM
        else next((part for part, groups in PARTS.items() if group in groups), group)
    )


OF_OTHERS = ("parsing.grammar",)
"""Mutable keys that only a run of another task may set."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", dict.fromkeys(part_of(key) for key in MUTABLE if key not in OF_OTHERS)
)
def test_every_mutable_key_can_change_when_a_run_is_resumed(part, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms").write_text("late\tspät\n")
    schedule = "noam" if part == NOAM else "wsd"
    keys = [key for key in MUTABLE if part_of(key) == part and key not in OF_OTHERS]
    if importlib.util.find_spec("ctranslate2") is None:
        keys = [
            key for key in keys if key != "decode.engine" and not key.startswith("ctranslate2.")
        ]
    for number, (changed, config) in enumerate(changed_together(config_of(schedule), keys)):
        workdir = trained(schedule, tmp_path / f"run{number}")
        assert train(config, workdir).finished, changed
        stored = read_config(workdir)
        assert set(config_lib.differences(config, stored)) <= {"train.precision"}, changed
        if part != "mesh" or not number:  # a search is compiled for each mesh
            assert len(load(workdir).translate(["It is late."])) == 1
        lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        recorded = {key for line in lines for key in line.get("config_changed", ())}
        assert recorded == set(changed) & set(keys_that_change(TRAINING))


def test_change_of_any_immutable_key_is_refused_and_changes_nothing(trained, tmp_path):
    workdir = trained("wsd", tmp_path / "run")
    kept = content(workdir)
    for key in IMMUTABLE:
        with refused(key):
            adopt_config(epath.Path(workdir), with_other_value(config_of(), key, check=False))
    with refused("data.vocab_size"):
        train(with_other_value(config_of(), "data.vocab_size", check=False), workdir)
    assert content(workdir) == kept


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("mesh.data", "3", "config.mesh"),
        ("mesh.tensor", "8", "config.m"),
        ("data.valid", "gone.en,gone.de", "gone.en"),
        ("languages.directions", "en-de=en-fr, en-de.more=en-fr, valid=en-fr", "target_language"),
        ("languages.directions", "en-de=de-en, en-de.more=de-en, valid=de-en", "tokenizer"),
    ],
)
def test_refused_change_of_a_mutable_key_changes_nothing(key, value, named, trained, tmp_path):
    workdir = trained("wsd", tmp_path / "run")
    # Damaged, so the final evaluation is to be repeated.
    (workdir / "complete.json").write_text("{}")
    (workdir / "diverged.json").write_text("{}")
    kept = content(workdir)
    config = config_lib.resolve(
        config_lib.override(config_lib.to_config_dict(config_of()), {key: value})
    )
    with refused(named):
        train(config, workdir)
    assert content(workdir) == kept


def test_refused_change_of_prepared_data_changes_nothing(tmp_path):
    """Before the first checkpoint any config may follow, but not one that cannot start."""
    api.prepare(config_of(), tmp_path / "run")
    kept = content(tmp_path / "run")
    for key, value in (
        ("data.valid", "gone.en,gone.de"),
        ("mesh.data", "3"),
        ("data.train", "en-de=gone.en,gone.de"),
    ):
        config = config_lib.resolve(
            config_lib.override(config_lib.to_config_dict(config_of()), {key: value})
        )
        with refused("config.mesh" if key == "mesh.data" else "gone.en"):
            train(config, tmp_path / "run")
        assert content(tmp_path / "run") == kept


def test_keys_of_the_model_are_what_they_say():
    """The function that the parameters are is fixed for a run.

    Dropout and initial values only change the training.
    """
    of_model = {key for key in fields() if key.startswith("model.")} | {"data.joint_vocabulary"}
    training = {key for key in of_model if "dropout" in key or key.endswith("_init")} | {
        "model.attention_kernel"
    }
    assert {
        key for key in keys_that_change(MODEL) if key.startswith(("model.", "data."))
    } == of_model - training


@pytest.mark.parametrize(
    "backend, capability, expected",
    [("cpu", None, "float32"), ("tpu", None, "bfloat16"), ("gpu", "7.5", "float32"), ("gpu", "8.0", "bfloat16"),
     ("gpu", "10.3", "bfloat16"), ("gpu", "gfx90a", "bfloat16")],
)  # fmt: skip
def test_automatic_precision_is_one_that_the_devices_multiply(
    monkeypatch, backend, capability, expected
):
    device = types.SimpleNamespace(
        **({} if capability is None else {"compute_capability": capability})
    )
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert precision.compute_dtype("auto") == expected


@pytest.mark.slow
def test_precision_of_the_first_start_stays_on_another_backend(
    trained, tmp_path, monkeypatch, capsys
):
    """train.precision = auto is bfloat16 on a GPU.

    A run that began in float32 on CPU goes on in float32.
    """
    longer = dataclasses.replace(config_of(), train=dataclasses.replace(config_of().train, steps=2))
    assert longer.train.precision == "auto"
    for name in ("moved", "stayed"):
        assert read_config(trained("wsd", tmp_path / name)).train.precision == "float32"
    train(longer, tmp_path / "stayed")
    real = precision.compute_dtype
    monkeypatch.setattr(
        precision, "compute_dtype", lambda name: real("bfloat16" if name == "auto" else name)
    )
    train(longer, tmp_path / "moved")
    assert_names(capsys.readouterr().out, "config.train.precision", "float32")
    losses = [
        [
            json.loads(line).get("loss")
            for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()
        ]
        for run in ("stayed", "moved")
    ]
    assert losses[0] == losses[1] and read_config(tmp_path / "moved").train.precision == "float32"
    assert (
        precision.with_precision(
            longer, epath.Path(tmp_path / "new"), ProcessGroup()
        ).train.precision
        == "bfloat16"
    )
    another = dataclasses.replace(
        longer, train=dataclasses.replace(longer.train, precision="bfloat16")
    )
    with refused("train.precision", "'float32'", "'bfloat16'"):
        train(another, tmp_path / "moved")


@pytest.mark.parametrize(
    ("trained_in", "decode", "backend", "expected"),
    [
        ("bfloat16", "auto", "cpu", "float32"),
        ("bfloat16", "auto", "gpu", "bfloat16"),
        ("float32", "auto", "tpu", "float32"),
        ("tf32", "auto", "cpu", "tf32"),
        ("bfloat16", "bfloat16", "cpu", "bfloat16"),
        ("bfloat16", "float32", "gpu", "float32"),
    ],
)
def test_precision_of_decoding(trained_in, decode, backend, expected, monkeypatch):
    config = config_of()
    config = dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, precision=trained_in),
        decode=dataclasses.replace(config.decode, precision=decode),
    )
    monkeypatch.setattr(precision.jax, "default_backend", lambda: backend)
    assert precision.decoding_precision(config) == expected
