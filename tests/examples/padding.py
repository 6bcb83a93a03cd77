"""A hook of the training loop: the share of padding of every tenth batch in metrics.jsonl."""

from dataclasses import dataclass

from t2t_flax.config.keys import key
from t2t_flax.registry import GROUPS, Group
from t2t_flax.training.hooks import Hook


@dataclass(frozen=True)
class Padding(Group):
    log: bool = key(False, "log the share of padding of every tenth batch")

    def training_hooks(self, setup, progress, processes):
        return [Hook("update", log_padding, every=10)] if self.log else []


def log_padding(step, batch, values):
    values["padding"] = 1 - batch.host.fill


GROUPS.add("padding", Padding)
