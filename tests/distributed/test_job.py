"""How one of several processes ends, and what it tells the others."""

import errno
from types import SimpleNamespace

import pytest

from t2t_flax.config import Distributed
from t2t_flax.distributed import job
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor


@pytest.mark.parametrize("number, code", [(errno.ENOSPC, 2), (errno.EIO, 1)])
def test_a_full_disk_of_one_process_is_a_mistake_to_see_to(number, code, monkeypatch):
    """Another error of the disk is a failure, after which a launcher starts all again."""
    said, told = [], []
    supervisor = SimpleNamespace(say=said.append, broadcast_failure=lambda *words: told.append(words), signal=None)

    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(job, "end", end)
    with pytest.raises(SystemExit) as ended:
        job._fail(supervisor, OSError(number, "what it says", "/runs/metrics.jsonl"))
    assert ended.value.code == code and told == [(code, said[0])]
    assert "what it says: '/runs/metrics.jsonl'" in said[0] and ("Free disk space" in said[0]) == (code == 2)


def test_the_hang_timeout_does_not_hold_where_something_may_compile(monkeypatch):
    """A first save, say; afterwards it holds again, and the time of the save does not count."""
    ended = []
    with RunSupervisor(ProcessGroup(), Distributed(hang_timeout=1000)) as supervisor:
        monkeypatch.setattr(supervisor, "_end_with_stacks", ended.append)
        with supervisor.expect_progress():
            with supervisor.suspend_hang_timeout():
                supervisor._alive_at -= 2000
                supervisor._check_hang()
            supervisor._check_hang()
            assert ended == []
            supervisor._alive_at -= 2000
            supervisor._check_hang()
            assert "hang_timeout = 1000" in ended[0]
