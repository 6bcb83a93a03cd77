"""What the config asks for after an update: a function of the update's number alone."""

from typing import NamedTuple

from t2t_flax.training.setup import TrainingSetup


class Due(NamedTuple):
    """Whether a validation loss, a validation BLEU and a checkpoint are due."""

    loss: bool
    bleu: bool
    checkpoint: bool

    @property
    def evaluation(self) -> bool:
        return self.loss or self.bleu


def due(run: TrainingSetup, step: int) -> Due:
    """After update `step`; epochs are counted in the updates that the plan of the batches gives them. The last update is
    saved in any case; where checkpoints go by epochs it is a regular one only at the end of an epoch.
    """
    c, epoch = run.config, run.batches.updates_per_epoch
    every = lambda *intervals: any(n and step % n == 0 for n in intervals)  # noqa: E731
    return Due(
        loss=every(c.eval.every_steps, c.eval.every_epochs * epoch),
        bleu=every(c.eval.decode_every_steps),
        checkpoint=every(c.checkpoint.every_steps, c.checkpoint.every_epochs * epoch)
        or (step == c.train.steps and not c.checkpoint.every_epochs),
    )
