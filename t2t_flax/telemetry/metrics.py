"""Metrics as JSON lines and TensorBoard event files."""

import json
from typing import Any

from etils import epath

from t2t_flax.files import write_whole


class MetricsWriter:
    """Appends to WORKDIR/metrics.jsonl (and WORKDIR/tensorboard).

    A resumed run drops the lines after its first update, so that the file reads as if nothing had happened.
    """

    def __init__(self, workdir: epath.Path, *, resume_step: int, tensorboard: bool):
        self._path = epath.Path(workdir) / "metrics.jsonl"
        kept = "".join(json.dumps(line) + "\n" for line in read_metrics(workdir) if line["step"] <= resume_step)
        if self._path.exists() and self._path.read_text() != kept:
            write_whole(self._path, kept)
        self._file = self._path.open("a")
        self._board = None
        if tensorboard:
            import tensorboardX

            self._board = tensorboardX.SummaryWriter(
                str(epath.Path(workdir) / "tensorboard"), purge_step=resume_step + 1
            )

    def write(self, step: int, values: dict[str, Any]) -> None:
        """One line `{"step": step, ...}`; numbers go to TensorBoard too."""
        self._file.write(json.dumps({"step": step} | values) + "\n")
        self._file.flush()
        if self._board:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        if self._board:
            self._board.close()


def read_metrics(workdir: str | epath.Path) -> list[dict[str, Any]]:
    """The lines of WORKDIR/metrics.jsonl; a last line that was cut by a kill is left out."""
    path = epath.Path(workdir) / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
