"""The coverage penalty of Wu et al. 2016, section 7: beta * sum_i log(min(sum_j p_ij, 1)) for attention p_ij of target token j to
source token i, which is added to the score of a finished hypothesis.

The model of a run becomes one that takes it from the log-probability of EOS, times the length penalty that a search divides by
there. So every search finds and ranks hypotheses by the penalized score, and stops when no other can be better: the penalty is at
most 0.
"""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp

from t2t_flax.config import Config
from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.decoding.beam_search import length_penalty
from t2t_flax.decoding.search_loop import Cache
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.extensions.shared.model_wrapper import ModelWrapper
from t2t_flax.training.checkpoint_selection import CheckpointChoice

LEAST = 1e-6
"""Attention that a source token has at least, so that one without any gives a finite penalty."""


@dataclasses.dataclass(frozen=True)
class Penalty:
    """beta: its weight. alpha, kind: of the search's `length_penalty`. layer: of the decoder, from 1, whose heads' mean counts;
    0 = the mean of all layers.
    """

    beta: float
    alpha: float = 0.6
    kind: str = "gnmt"
    layer: int = 0

    def apply(self, logits_BxKxV, length, attended_BxKxS, covered_BxS):
        """Logits with which EOS as token number `length` has its log-probability less the penalty. What it loses goes to padding,
        which is never written, so that all other tokens keep theirs. attended: attention to each source token so far, that of
        the position included. covered: which source tokens count.
        """
        logs_BxKxS = jnp.log(jnp.clip(attended_BxKxS, LEAST, 1.0))
        penalty_BxK = self.beta * jnp.sum(jnp.where(covered_BxS[:, None], logs_BxKxS, 0.0), axis=-1)
        penalty_BxK = penalty_BxK * length_penalty(length, self.alpha, self.kind)
        eos_BxK, pad_BxK = logits_BxKxV[..., EOS], logits_BxKxV[..., PAD]
        lost_BxK = eos_BxK + jnp.log(-jnp.expm1(penalty_BxK))  # -inf where there is no penalty
        logits_BxKxV = logits_BxKxV.at[..., EOS].add(penalty_BxK)
        return logits_BxKxV.at[..., PAD].set(jnp.logaddexp(pad_BxK, lost_BxK))


@dataclasses.dataclass(frozen=True)
class CoveringModel(ModelWrapper):
    """A Transformer, or an ensemble of them, whose `decode_step` applies a penalty; parameters are the model's own."""

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
        logits_BxKxV = self.penalty.apply(logits_BxKxV, position + 1, attended_BxKxS, cache["covered"])
        return logits_BxKxV, after | {"self": {"model": after["self"], "attended": {"state": attended_BxKxS}}}

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
    return dataclasses.replace(loaded, model=covering(loaded.model, loaded.config))


def covering(model: Any, config: Config) -> Any:
    """The model with the penalty of a config."""
    settings, decode = config.group("constraints"), config.decode
    penalty = Penalty(settings.coverage, decode.alpha, decode.length_penalty, settings.coverage_layer)
    return CoveringModel(model, penalty)
