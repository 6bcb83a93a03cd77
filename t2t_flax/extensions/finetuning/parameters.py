"""The parameters of a run that is fine-tuned, see `training.train_state.Parameters`."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import jax
from flax.traverse_util import flatten_dict

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.extensions.finetuning import FineTuning, lora, of
from t2t_flax.extensions.finetuning.frozen import split_frozen
from t2t_flax.training.train_state import Parameters

if TYPE_CHECKING:
    from t2t_flax.training.setup import TrainingSetup


def parameters(config: Config) -> "FineTuned":
    return FineTuned(of(config))


@dataclasses.dataclass(frozen=True)
class FineTuned(Parameters):
    keys: FineTuning

    @property
    def starts_trained(self) -> bool:
        return bool(self.keys.init_from)

    def extend(self, params: dict[str, Any]) -> dict[str, Any]:
        return lora.with_adapters(self.keys, params)

    def init(self, params: dict[str, Any], structs: dict[str, Any], key: jax.Array) -> dict[str, Any]:
        if lora.NAME not in structs:
            return params
        init = functools.partial(lora.init_adapters, structs[lora.NAME])
        shardings = jax.tree.map(lambda x: x.sharding, structs[lora.NAME])
        return params | {lora.NAME: jax.jit(init, out_shardings=shardings)(key)}

    def start(
        self, setup: "TrainingSetup", params: dict[str, Any], group: ProcessGroup | None, say: Callable[[str], None]
    ) -> dict[str, Any]:
        from t2t_flax.extensions.finetuning.start import start_params

        return params | start_params(setup, params, group, say) if self.keys.init_from else params

    def split(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.keys.lora_rank:
            return {lora.NAME: params[lora.NAME]}, self.of_model(params)
        return split_frozen(self.keys.freeze, params)

    def merge(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return lora.merge(self.keys, params)

    def merge_on_devices(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return lora.merge_on_devices(self.keys, params)

    def of_model(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {name: tree for name, tree in params.items() if name != lora.NAME}

    def merged_config(self, config: Config) -> Config:
        return config.with_values(
            {f"finetuning.{name}": getattr(FineTuning, name) for name in ("lora_rank", "lora_alpha", "lora_modules")}
        )

    def with_gradient(self, params: Mapping[str, Any]) -> Collection[str] | None:
        if not self.keys.freeze and not self.keys.lora_rank:
            return None
        paths = flatten_dict(self.split(params)[0], sep="/")
        # The gradient of a kernel with adapters is computed whole; those of the adapters follow from it.
        return (
            {path.removeprefix(f"{lora.NAME}/").rpartition("/")[0] for path in paths} if self.keys.lora_rank else paths
        )

    def describe(self) -> list[str]:
        k = self.keys
        if not k.init_from:
            return []
        rows = {"same": "its tokenizer", "by_piece": "another tokenizer, rows by piece"}[k.init_vocabulary]
        return ["start", f"  parameters of {k.init_from}, checkpoint {k.init_checkpoint}, {rows}"]
