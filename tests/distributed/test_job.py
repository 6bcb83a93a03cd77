"""Exit of one of several processes after a failure."""

import errno
from types import SimpleNamespace

import pytest

from t2t_flax.distributed import job


@pytest.mark.parametrize("number, code", [(errno.ENOSPC, 2), (errno.EIO, 1)])
def test_only_full_disk_is_a_user_error(number, code, monkeypatch):
    """A launcher restarts all processes after a failure; disk space must be freed by the user."""
    messages, broadcasts = [], []
    supervisor = SimpleNamespace(
        say=messages.append, broadcast_failure=lambda *message: broadcasts.append(message), signal=None
    )

    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(job, "end", end)
    with pytest.raises(SystemExit) as ended:
        job._fail(supervisor, OSError(number, "what it says", "/runs/metrics.jsonl"))
    assert ended.value.code == code and broadcasts == [(code, messages[0])]
    assert "what it says: '/runs/metrics.jsonl'" in messages[0] and ("Free disk space" in messages[0]) == (code == 2)
