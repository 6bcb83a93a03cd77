"""The coverage penalty of Wu et al. 2016, section 7: beta * sum_i log(min(sum_j p_ij, 1)) for attention p_ij of target token j to
source token i, which is added to the score of a finished hypothesis.

The model of a run becomes one that says what each hypothesis would lose if it ended. So every search with a beam ranks finished
hypotheses by the penalized score, and stops when no other can be better: the penalty is at most 0.
"""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp

from t2t_flax.config.data_keys import EOS
from t2t_flax.decoding.search_loop import Cache
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.extensions.shared.model_wrapper import ModelWrapper
from t2t_flax.training.checkpoint_selection import CheckpointChoice

LEAST = 1e-6
"""Attention that a source token has at least, so that one without any gives a finite penalty."""


@dataclasses.dataclass(frozen=True)
class Penalty:
    """beta: its weight. layer: of the decoder, from 1, whose heads' mean counts; 0 = the mean of all layers."""

    beta: float
    layer: int = 0

    def __call__(self, attended_BxKxS: jax.Array, covered_BxS: jax.Array) -> jax.Array:
        """float32 [B, K]. attended: attention to each source token so far, that of the position included. covered: which
        source tokens count.
        """
        logs_BxKxS = jnp.log(jnp.clip(attended_BxKxS, LEAST, 1.0))
        return self.beta * jnp.sum(jnp.where(covered_BxS[:, None], logs_BxKxS, 0.0), axis=-1)


@dataclasses.dataclass(frozen=True)
class CoveringModel(ModelWrapper):
    """A Transformer, or an ensemble of them, with a penalty as `Sentences.ending_BxK`; parameters are the model's own."""

    penalty: Penalty

    @property
    def output_params(self) -> tuple[str, ...]:
        """See `Transformer.output_params`."""
        return self.model.output_params

    def apply(self, variables: Any, *args: Any, method: str = "__call__", **options: Any) -> Any:
        """As of a flax module."""
        own = {"start_cache": self._start_cache, "decode_step": self._decode_step}
        if method in own:
            return own[method](variables, *args)
        return self.model.apply(variables, *args, method=method, **options)

    def _start_cache(self, variables: Any, source_BxS: jax.Array, beam_size: int, length: int) -> Cache:
        cache = self.model.apply(variables, source_BxS, beam_size, length, method="start_cache")
        attended_BxKxS = jnp.zeros((len(source_BxS), beam_size, source_BxS.shape[1]))
        own = {"model": cache["self"], "attended": {"state": attended_BxKxS}}
        return cache | {"self": own, "covered": source_BxS > EOS}  # neither padding nor the end of the sentence

    def _decode_step(self, variables: Any, tokens_BxK, position, cache: Cache) -> tuple[jax.Array, Cache]:
        inner, own = cache | {"self": cache["self"]["model"]}, cache["self"]["attended"]
        (logits_BxKxV, after), state = self.model.apply(
            variables, tokens_BxK, position, inner, method="decode_step", mutable=["intermediates"]
        )
        attended_BxKxS = own["state"] + self._attention(state["intermediates"])
        new = {"model": after["self"], "attended": {"state": attended_BxKxS}}
        return logits_BxKxV, after | {"self": new, "ending": self.penalty(attended_BxKxS, cache["covered"])}

    def _attention(self, intermediates: Any) -> jax.Array:
        """float32 [B, K, S]: the mean over heads, layers and models that count."""
        layer = f"decoder_{self.penalty.layer - 1}" if self.penalty.layer else r"decoder_\d+"
        weights = [
            weights_BxNxKxS.mean(axis=1)
            for path, weights_BxNxKxS in jax.tree.leaves_with_path(intermediates)
            if re.search(rf"'{layer}'.*'cross_attention'", jax.tree_util.keystr(path))
        ]
        return jnp.stack(weights).mean(axis=0)


def extend(
    loaded: TrainedModel, choice: CheckpointChoice, overrides: dict[str, str], group: ProcessGroup | None
) -> TrainedModel:
    """The run with a model that penalizes what is not covered; see `registry.MODELS`."""
    settings = loaded.config.group("constraints")
    model: Any = CoveringModel(loaded.model, Penalty(settings.coverage, settings.coverage_layer))
    return dataclasses.replace(loaded, model=model)
