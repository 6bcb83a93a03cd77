"""Progress bars without a terminal."""

import contextlib
from types import SimpleNamespace

import pytest

from t2t_flax.evaluation.sets import decode_progress
from t2t_flax.training.progress import ProgressBar, bars


@pytest.mark.parametrize("eta", [True, False])
def test_remaining_time_is_shown_only_where_it_is_known(capsys, eta):
    with ProgressBar("decode", 4, unit="sentences", eta=eta) as bar:
        bar.update(1)
        bar.update(4)
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("decode 1/4 sentences") and ("ETA" in first) == eta
    assert last == "decode 4/4 sentences"


def test_total_may_become_known_and_change(capsys):
    """As the pairs of a compressed file are estimated. No count is shown before the first pairs."""
    monotonic = iter(range(0, 900, 20))
    with pytest.MonkeyPatch.context() as patch, bars() as bar:
        patch.setattr("t2t_flax.training.progress.time.monotonic", lambda: next(monotonic))
        for done, total in ((0, None), (10_000, 30_000), (20_000, 25_000), (25_001, 25_001)):
            bar("sample sentences", done, total, "pairs")
    lines = capsys.readouterr().out.replace("sample sentences", "").splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "", "10,000/30,000 pairs ETA 0:01:20", "20,000/25,000 pairs ETA 0:00:15", "25,001/25,001 pairs"
    ]  # fmt: skip


def test_hang_timeout_applies_to_decoding_only():
    """Restoring, compiling and scoring, around the batches, may take longer."""
    holds = []

    @contextlib.contextmanager
    def progress():
        holds.append(True)
        supervisor.progress_expected = True
        yield
        supervisor.progress_expected = False
        holds.append(False)

    group = SimpleNamespace(is_lead=False)
    supervisor = SimpleNamespace(
        expect_progress=progress, should_stop=lambda: False, group=group, progress_expected=False
    )
    with decode_progress(supervisor) as decoded:
        assert holds == []
        decoded(2, 4)
        assert holds == [True]
        decoded(4, 4)
        assert holds == [True, False]
    assert holds == [True, False]
