"""What is shown of how far something is, where there is no terminal."""

import pytest

from t2t_flax.telemetry.progress import Progress


@pytest.mark.parametrize("eta", [True, False])
def test_the_time_left_is_told_only_where_it_can_be(capsys, eta):
    with Progress("decode", 4, unit="sentences", eta=eta) as bar:
        bar.update(1)
        bar.update(4)
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("decode 1/4 sentences") and ("ETA" in first) == eta
    assert last == "decode 4/4 sentences"
