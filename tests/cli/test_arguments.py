"""Command lines are parsed, or refused by a message that names the flag."""

import pytest
from helpers.refusals import refused
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.cli import arguments
from t2t_flax.errors import UserError

LARGE = "9" * 30


def parse_arguments(*argv: str):
    parser = arguments.parser("x", "")
    arguments.add_workdir(parser, "")
    arguments.add_checkpoint(parser)
    named = any(arg.startswith("--workdir") for arg in argv)
    return arguments.parse(parser, [*([] if named else ["--workdir=w"]), *argv])


@pytest.mark.parametrize(
    ("argument", "names"),
    [
        ("--average=-3", ["--average", "-3", "0"]),
        ("--step=-1", ["--step", "-1", "0"]),
        ("--step=1e3", ["--step", "'1e3'"]),
        (f"--step={LARGE}", ["--step", LARGE]),
        ("--workdir=", ["--workdir="]),
        ("--workdir=--", ["--workdir="]),
        ("--workdir=\udcff", ["--workdir"]),
        ("--config.model.d_model", ["--config.model.d_model"]),
        ("--no-such-flag", ["--no-such-flag"]),
    ],
)
def test_wrong_arguments(argument, names):
    with refused(*names):
        parse_arguments(argument)


def test_home_folder_in_a_flag_is_the_users(monkeypatch):
    """Shells put it into words that begin with ~ alone."""
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_arguments("--workdir=~/runs/a")[0].workdir == "/home/me/runs/a"


def test_home_folder_in_a_flag_is_refused_without_one(no_home):
    with refused("--workdir", "HOME"):
        parse_arguments("--workdir=~/runs/a")


@given(
    st.lists(
        st.text(max_size=12)
        | st.sampled_from(["--average", "--step=1", "--config.", "--config.=", "--"]),
        max_size=4,
    )
)
def test_random_command_lines_are_parsed_or_refused(argv):
    if any(arg in ("-h", "--help") for arg in argv):
        return
    try:
        parse_arguments(*argv)
    except UserError as error:
        assert str(error).encode() and len(str(error)) < 5000
