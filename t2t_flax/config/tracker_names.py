"""Parses log.trackers: where the numbers of a run go besides metrics.jsonl."""

import difflib

from t2t_flax.errors import UserError

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""Each has its row in `monitoring.trackers`."""


def tracker_names(text: str) -> tuple[str, ...]:
    """The trackers in `tensorboard,wandb`, each once; none for empty text. Raises UserError for an unknown one."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in TRACKERS:
            near = difflib.get_close_matches(name, TRACKERS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UserError(
                f"config.log.trackers = {text!r}: there is no tracker {name!r}.{hint} Expected a comma-separated list of "
                f"{', '.join(TRACKERS)}, or nothing."
            )
    return names
