"""Keys of inspection."""

import re

import pytest

from t2t_flax.config import from_json, override, resolve, to_json
from t2t_flax.config.presets import preset
from t2t_flax.errors import UserError
from t2t_flax.extensions.inspection import Inspection
from t2t_flax.registry import HOOKS


def config_of(steps: str):
    return resolve(override(preset("aiayn_base"), {"inspection.profile_steps": steps}))


@pytest.mark.parametrize("text", ["3,5", "(3, 5)"])
def test_two_updates_are_read_and_stored(text):
    config = config_of(text)
    assert Inspection.of(config).profile_steps == (3, 5) and from_json(to_json(config)) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "expected (int, int)"),
        ("5,3", "the first update comes after the last"),
        ("0,5", "config.inspection.profile_steps = (0, 5): updates are counted from 1"),
    ],
)
def test_impossible_updates_are_refused(text, message):
    with pytest.raises(UserError, match=re.escape(message)):
        config_of(text)


def test_statistics_that_no_line_would_hold_are_refused():
    config = override(preset("aiayn_base"), {"inspection.layers_every": "150", "log.every_steps": "100"})
    with pytest.raises(UserError, match="layers_every = 150 is not a multiple of config.log.every_steps = 100"):
        resolve(config)


@pytest.mark.parametrize(("steps", "expected"), [("0,0", set()), ("3,5", {"profile"})])
def test_profiles_are_a_hook_of_runs_that_ask_for_them(steps, expected):
    modules = [module.__name__.split(".") for module in HOOKS.of(config_of(steps))]
    assert {name for _, _, extension, name in modules if extension == "inspection"} == expected
