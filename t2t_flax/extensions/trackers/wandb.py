"""Weights & Biases."""

import os

from t2t_flax.extensions.trackers.tracker import FINISH_SECONDS, FLUSH_SECONDS, PROJECT, TrackedRun


class Wandb:
    """Without a login or a network in its offline mode, which `wandb sync` sends later."""

    modules = ("wandb",)
    purges = False

    def __init__(self, run: TrackedRun, id: str):
        import wandb

        settings = wandb.Settings(
            console="off",  # our output is no one else's
            silent=True,
            symlink=False,
            x_save_requirements=False,
            finish_timeout=FINISH_SECONDS,
            x_transaction_log_flush_interval=FLUSH_SECONDS,
            x_sync_dir_suffix=str(run.resume_step),  # folders are named by the second
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            dir=str(run.folder),
            id=id or os.urandom(4).hex(),
            name=run.name,
            group=run.group,
            config=run.settings(),
            resume="allow",
            mode=os.environ.get("WANDB_MODE") or _mode(),
            reinit="create_new",  # runs that train together are open at the same time
            allow_val_change=True,
            settings=settings,
        )
        # Our own step, not wandb's: two lines may be of one update.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        self.id = self._run.id
        folder = os.path.dirname(self._run.dir)
        self.place = "" if self._run.offline else self._run.url or ""
        self.place = self.place or f"offline; `wandb sync {folder}` sends it"

    def write(self, step: int, values: dict[str, float]) -> None:
        self._run.log({"step": step} | values)

    def close(self) -> None:
        self._run.finish()


def _mode() -> str:
    """Asks for no login, as `wandb.init` would in the middle of a run, and does not wait for a server that does not answer."""
    import wandb

    try:
        return "online" if wandb.login(prompt=False) else "offline"
    except wandb.errors.AuthenticationError:
        return "offline"
