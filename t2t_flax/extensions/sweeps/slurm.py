"""Workers as SLURM jobs, through submitit: each joins the sweep in its folder, and requeues before its time limit."""

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from t2t_flax.errors import OK, STOPPED, UserError, install_hint
from t2t_flax.process_setup import child_environment

_MAX_REQUEUES = 1000
NO_SUBMITIT = f"--submit needs submitit: {install_hint('sweep')}."


class SlurmWorker:
    """Runs the `sweep` command in a job; before the time limit its trials save, and the job requeues."""

    def __init__(self, command: list[str]):
        self.command = command
        self._process: subprocess.Popen | None = None

    def __call__(self) -> int:
        # Without `on_stop_signal`: submitit owns this process's signal handlers. It calls `checkpoint` from one, on top of this
        # call, so wait() would block there: both would need the same lock.
        environment = child_environment()
        self._process = subprocess.Popen(self.command, env=environment, preexec_fn=_ignore_slurm_signals)
        while (code := self._process.poll()) is None:
            time.sleep(0.2)
        if code not in (OK, STOPPED):
            raise RuntimeError(f"the worker ended with exit code {code}: {' '.join(self.command)}")
        return code

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Called by submitit shortly before the time limit, or on preemption."""
        import submitit

        if self._process is not None:
            self._process.terminate()
            while self._process.poll() is None:
                time.sleep(0.2)
        return submitit.helpers.DelayedSubmission(SlurmWorker(self.command))


def submit(
    folder: Path, command: list[str], workers: int, options: dict[str, str], *, cluster: str = "slurm"
) -> list[str]:
    """Submits `workers` jobs that run `command` and returns their ids. options: of submitit, such as timeout_min,
    slurm_partition, gpus_per_node. Raises UserError if submitit or SLURM is missing or refuses them.
    """
    try:
        import submitit
    except ImportError:
        raise UserError(NO_SUBMITIT) from None
    try:
        executor = submitit.AutoExecutor(folder=folder / "slurm", cluster=cluster, slurm_max_num_timeout=_MAX_REQUEUES)
        executor.update_parameters(**{key: int(v) if v.isdecimal() else v for key, v in options.items()})
        with executor.batch():
            jobs = [executor.submit(SlurmWorker(command)) for _ in range(workers)]
    except (RuntimeError, NameError, TypeError, ValueError, OSError, submitit.core.utils.FailedJobError) as error:
        raise UserError(f"the jobs could not be submitted: {error}") from None
    return [job.job_id for job in jobs]


def _ignore_slurm_signals() -> None:
    """SLURM signals every process of a job before its time limit; only submitit's process should react."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
