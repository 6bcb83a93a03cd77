"""Metrics as JSON lines and TensorBoard event files."""

import json
import logging
from typing import Any

from etils import epath

from t2t_flax.files import is_remote, write_whole
from t2t_flax.telemetry import mirror

log = logging.getLogger("t2t_flax")


class MetricsWriter:
    """Appends to WORKDIR/metrics.jsonl (and WORKDIR/tensorboard).

    A resumed run drops the lines after its first update, so that the file reads as if nothing had happened. For a
    workdir in an object store the files grow on local disk and are sent whole, now and then and by `send`.
    """

    def __init__(self, workdir: epath.Path, *, resume_step: int, tensorboard: bool):
        workdir = epath.Path(workdir)
        kept = "".join(json.dumps(line) + "\n" for line in read_metrics(workdir) if line["step"] <= resume_step)
        self._mirror = mirror.Mirror(workdir) if is_remote(workdir) else None
        folder = epath.Path(self._mirror.local) if self._mirror else workdir
        path = folder / "metrics.jsonl"
        if self._mirror or path.exists() and path.read_text() != kept:
            write_whole(path, kept)
        self._file = path.open("a")
        self._board = None
        if tensorboard:
            import tensorboardX

            flush = mirror.SECONDS if self._mirror else 120
            self._board = tensorboardX.SummaryWriter(
                str(folder / "tensorboard"), purge_step=resume_step + 1, flush_secs=flush
            )

    def write(self, step: int, values: dict[str, Any]) -> None:
        """One line `{"step": step, ...}`; numbers go to TensorBoard too."""
        self._file.write(json.dumps({"step": step} | values) + "\n")
        self._file.flush()
        if self._board and not self._board.file_writer.event_writer._worker.is_alive():
            # Its thread ends at an error (a full disk), and what is added would then wait for it for ever.
            log.warning("TensorBoard's files can no longer be written; metrics.jsonl has everything")
            self._board = None
        if self._board:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, step)

    def send(self) -> None:
        """Makes the lines so far outlive this machine, as the checkpoint will that is made next. Pictures of the last
        seconds may be missing: TensorBoard's writer has a queue of its own.
        """
        if self._mirror:
            self._mirror.send()

    def close(self) -> None:
        self._file.close()
        if self._board:
            self._board.close()
        if self._mirror:
            self._mirror.close()


def read_metrics(workdir: str | epath.Path) -> list[dict[str, Any]]:
    """The lines of WORKDIR/metrics.jsonl; a last line that was cut by a kill is left out."""
    path = epath.Path(workdir) / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
