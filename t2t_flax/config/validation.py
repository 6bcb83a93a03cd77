"""What a run must have before its first update, so that it is not refused, or silently left out, after hours of training.

Stored runs are not held to it: they are there.
"""

from t2t_flax.config.schema import Config
from t2t_flax.errors import UserError


def check_trainable(c: Config) -> None:
    """Raises UserError where the config asks for evaluations that cannot take place, or for what only they decide."""
    e = c.eval
    if e.decode_every_steps and not c.data.valid:
        raise UserError(
            f"config.eval.decode_every_steps = {e.decode_every_steps} needs config.data.valid, which is empty: name a "
            "validation set, or set eval.decode_every_steps = 0."
        )
    scored = e.metric not in ("nll", "loss")
    known = e.decode_every_steps if scored else e.every_steps or e.every_epochs
    if c.data.valid and known:
        return
    missing = "config.data.valid is empty"
    if c.data.valid:
        missing = f"config.eval.{'decode_every_steps' if scored else 'every_steps and eval.every_epochs'} = 0"
    for key, value, asked in (
        ("eval.patience", e.patience, e.patience > 0),
        ("checkpoint.keep_best", c.checkpoint.keep_best, c.checkpoint.keep_best > 1),
    ):
        if asked:
            raise UserError(
                f"config.{key} = {value} goes by eval.metric = {e.metric}, which is never computed: {missing}."
            )
