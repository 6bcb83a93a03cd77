"""`translate --n-best` and the run's decode.n_best."""

import types

import pytest
from helpers.refusals import refused

from t2t_flax.cli import arguments, translate
from t2t_flax.config import Config


class Loaded(Exception):
    pass


def overrides(monkeypatch, *argv: str) -> dict[str, str]:
    def load_run(args: types.SimpleNamespace, flags: dict[str, str]):
        raise Loaded(flags)

    monkeypatch.setattr(arguments, "load_run", load_run)
    monkeypatch.setattr("t2t_flax.evaluation.restore.stored_config", lambda *args: Config())
    with pytest.raises(Loaded) as caught:
        translate.run(["--workdir=w", *argv])
    return caught.value.args[0]


def test_flag_overrides_the_runs_own_n_best(monkeypatch):
    assert overrides(monkeypatch) == {}
    assert overrides(monkeypatch, "--n-best=1") == {"decode.n_best": "1"}
    # Underscores are accepted too.
    assert overrides(monkeypatch, "--n_best=2") == {"decode.n_best": "2"}
    assert overrides(monkeypatch, "--n-best=3", "--config.decode.n_best=3") == {
        "decode.n_best": "3"
    }


@pytest.mark.parametrize(
    "argv", [["--n-best=4", "--config.decode.n_best=2"], ["--n-best=0"], ["--n-best=-1"]]
)
def test_conflicting_or_zero_n_best_is_refused(argv):
    with refused("best"):
        translate.run(["--workdir=w", *argv])
