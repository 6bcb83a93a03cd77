"""Files that grow, in a workdir."""

from pathlib import Path

from etils import epath

from t2t_flax.filesystem import by_storage


class GrowingFiles:
    """A workdir on disk: `local` is the workdir itself."""

    def __init__(self, workdir: epath.Path):
        self.local = Path(workdir)

    def send(self) -> None:
        """All is there."""

    def close(self) -> None:
        """All is there."""


@by_storage
def open_growing_files(workdir: epath.Path) -> GrowingFiles:
    """Where files of a workdir can grow: in `local`."""
    return GrowingFiles(workdir)
