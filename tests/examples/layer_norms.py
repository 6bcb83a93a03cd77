"""A hook of the training loop: the gradient norm of every layer in metrics.jsonl."""

from dataclasses import dataclass

import optax

from t2t_flax.config.keys import key
from t2t_flax.registry import GROUPS, HOOKS
from t2t_flax.training.hooks import Hook


@dataclass(frozen=True)
class LayerNorms:
    log: bool = key(False, "log the gradient norm of every layer")


class LayerNormsHook(Hook):
    def measure(self, params, grads):
        return {f"grad_norm/{layer}": optax.tree.norm(of_layer) for layer, of_layer in grads.items()}


def hook(config, workdir, group):
    return LayerNormsHook()


GROUPS.add("layer_norms", LayerNorms)
HOOKS.add("layer_norms", "layer_norms.log")
