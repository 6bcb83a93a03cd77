"""Recipes: presets of other codebases and papers, and padded batches.

Padded batches are counted with their padding. The presets include the rows of the paper's Table 3.
"""

from dataclasses import dataclass
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.keys import key
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS, Group


@dataclass(frozen=True)
class Recipes(Group):
    batch_groups: int = key(
        0,
        "an update is this many groups of similar sentences, each of at most data.batch_tokens /"
        " batch_groups tokens of the longer side with padding, in multiples of 8 sentences"
        " (fairseq: one group a device). 0 = data.batch_tokens are slots of packed rows or buckets",
        low=0,
    )

    def check(self, config: Config) -> None:
        """Raise UserError for too small groups, and for several groups in an update of buckets."""
        d = config.data
        if self.batch_groups and d.batch_tokens // self.batch_groups < 2 * d.max_length:
            raise UserError(
                f"config.data.batch_tokens = {d.batch_tokens} in {self.batch_groups} groups must"
                f" hold at least two of the longest pairs (config.data.max_length = {d.max_length})"
                " in each."
            )
        if self.batch_groups > 1 and d.batching == "buckets":
            raise UserError(
                f"config.recipes.batch_groups = {self.batch_groups} puts sentences of different"
                " lengths into an update: use config.data.batching = packed."
            )

    @staticmethod
    def presets() -> dict[str, Any]:
        from t2t_flax.extensions.recipes import algoperf, presets

        return presets.PRESETS | algoperf.PRESETS

    def data_hook(self, config: Config) -> Any:
        if not self.batch_groups:
            return None
        from t2t_flax.extensions.recipes.padded_batches import PaddedBatches

        return PaddedBatches(config)


GROUPS.add("recipes", Recipes)
