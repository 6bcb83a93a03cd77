"""Profiles of a run."""

from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
from helpers.runs import start, tiny_run

from t2t_flax.extensions.inspection import profile
from t2t_flax.training import loop


def test_a_run_writes_a_profile(tmp_path, cache):
    config = tiny_run(tmp_path, steps=6, inspection=dict(profile_steps=(3, 4)))
    loop.train(start(config, tmp_path, cache), score=None)
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_profile_in_an_object_store_is_copied_when_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "is_remote", lambda path: True)
    monkeypatch.setattr(profile, "copy_file", lambda source, target: sent.append((Path(source).read_bytes(), target)))
    sent: list = []
    trace = profile.Profile(tmp_path / "profile", (2, 3))
    trace.on_start(None, SimpleNamespace(step=0))
    for step in range(1, 5):
        jnp.ones(3).sum().block_until_ready()
        assert step > 3 or not sent
        trace.on_update(step, None, {})
    assert any(content and target.match("*/profile/plugins/profile/*/*.xplane.pb") for content, target in sent)


def test_of_two_runs_in_a_process_one_is_traced(tmp_path):
    first, second = (profile.Profile(tmp_path / name, (1, 1)) for name in "ab")
    for trace in (first, second):
        trace.on_start(None, SimpleNamespace(step=0))
    for trace in (second, first):
        trace.on_update(1, None, {})
    assert list((tmp_path / "a").rglob("*.xplane.pb")) and not (tmp_path / "b").exists()
