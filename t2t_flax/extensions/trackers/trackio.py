"""Trackio of Hugging Face."""

import os

from t2t_flax.extensions.trackers.tracker import PROJECT, TrackedRun


class Trackio:
    """In its local folder (TRACKIO_DIR), or the server or Space that its variables name."""

    modules = ("trackio",)
    purges = False

    def __init__(self, run: TrackedRun, id: str):
        import trackio

        self.id = id or f"{run.name}-{os.urandom(3).hex()}"  # it finds a run by its name
        self.place = ""  # which it prints itself
        self._run = trackio.init(
            project=PROJECT,
            name=self.id,
            group=run.group,
            config=run.settings(),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, step: int, values: dict[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
