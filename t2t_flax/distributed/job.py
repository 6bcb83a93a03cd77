"""Runs a command as one of several processes: none waits for one that is gone, and each says why it ends."""

import contextlib
import sys
import traceback
from collections.abc import Callable

from etils import epath

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import broken_connection
from t2t_flax.distributed.initialize import InitializationError, initialize
from t2t_flax.distributed.supervisor import RunSupervisor, end
from t2t_flax.errors import FAILURE, STOPPED, USER_ERROR, WRITE_HINT, UserError, first_line
from t2t_flax.filesystem import is_write_refused


def run_job(
    config: Config,
    body: Callable[[RunSupervisor], int],
    *,
    stacks: epath.Path | None = None,
    use_devices: bool = True,
) -> int:
    """`body(supervisor)` in this process, alone or as one of several; returns its exit code.

    Where one of several fails, the others learn why, and none waits for another. Must run before anything touches a
    device. `stacks`: folder for the stack traces of a process that hangs. `use_devices`: see `initialize`.
    """
    try:
        group = initialize(config.distributed, use_devices=use_devices)
    except InitializationError as error:
        print(f"t2t_flax: {error}", file=sys.stderr)
        end(FAILURE)
    with RunSupervisor(group, config, stacks=stacks) as supervisor:
        try:
            code = body(supervisor)
        except BaseException as error:
            if group.count == 1:
                raise
            _fail(supervisor, error)
    if group.count > 1:
        import jax

        with contextlib.suppress(Exception):
            jax.distributed.shutdown()
    return code


def _fail(supervisor: RunSupervisor, error: BaseException) -> None:
    """Says what happened, tells the other processes, and ends this one."""
    if isinstance(error, OSError) and is_write_refused(error):
        error = UserError(f"{error}. {WRITE_HINT}")
    if isinstance(error, UserError):
        supervisor.say(str(error))
        supervisor.broadcast_failure(USER_ERROR, str(error))
        end(USER_ERROR)
    if supervisor.signal and broken_connection(error):
        supervisor.say(f"{supervisor.signal}: another process exited first; the last checkpoint stays")
        end(STOPPED)
    text = f"{type(error).__name__}: {first_line(error)}"
    if broken_connection(error):
        dead = ", ".join(supervisor.find_dead_processes()) or "which one is not known"
        supervisor.say(
            f"the connection to another process broke ({dead}). The last checkpoint stays; start all processes again. "
            f"({text})"
        )
    else:
        traceback.print_exception(error)
        supervisor.say(text)
        supervisor.broadcast_failure(FAILURE, text)
    end(FAILURE)
