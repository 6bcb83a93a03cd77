"""Supervisors of processes that are threads."""

import contextlib
import dataclasses

from helpers.thread_groups import thread_groups
from t2t_flax.config import Config, Distributed
from t2t_flax.distributed.supervisor import RunSupervisor


class Exit(BaseException):
    """The end of a process that is a thread."""


@contextlib.contextmanager
def supervisors(count: int, config: Config | None = None, **keys):
    """(service, supervisors). keys: of config.distributed."""
    config = dataclasses.replace(config or Config(), distributed=Distributed(**keys))
    service, groups = thread_groups(count)
    with contextlib.ExitStack() as stack:
        yield service, [stack.enter_context(RunSupervisor(group, config)) for group in groups]
