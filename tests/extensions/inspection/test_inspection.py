"""Profiles of a run, and the keys of inspection."""

from pathlib import Path

import jax.numpy as jnp
import pytest
from helpers.refusals import refused
from helpers.runs import start, tiny_run

from t2t_flax.config import from_json, override, resolve, to_json
from t2t_flax.config.presets import preset
from t2t_flax.extensions.inspection import Inspection, profile
from t2t_flax.training import loop


def config_of(keys):
    return resolve(override(preset("aiayn_base"), keys))


def test_a_run_writes_a_profile(tmp_path, cache):
    config = tiny_run(tmp_path, steps=6, inspection=dict(profile_steps=(3, 4)))
    loop.train(start(config, tmp_path, cache), score=None)
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_profile_in_an_object_store_is_copied_when_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "is_remote", lambda path: True)
    monkeypatch.setattr(
        profile,
        "copy_file",
        lambda source, target: sent.append((Path(source).read_bytes(), target)),
    )
    sent: list = []
    trace = profile.Profile(tmp_path / "profile", (2, 3))
    trace.start_before(0)
    for step in range(1, 5):
        jnp.ones(3).sum().block_until_ready()
        assert step > 3 or not sent
        trace.after(step)
    assert any(
        content and target.match("*/profile/plugins/profile/*/*.xplane.pb")
        for content, target in sent
    )


@pytest.mark.parametrize("text", ["3,5", "(3, 5)"])
def test_two_updates_are_read_and_stored(text):
    config = config_of({"inspection.profile_steps": text})
    assert Inspection.of(config).profile_steps == (3, 5) and from_json(to_json(config)) == config


@pytest.mark.parametrize(
    "keys",
    [
        *({"inspection.profile_steps": steps} for steps in ("3", "5,3", "0,5")),
        {"inspection.layers_every": "150", "log.every_steps": "100"},
    ],
)
def test_impossible_updates_are_refused(keys):
    with refused(next(iter(keys))):
        config_of(keys)
