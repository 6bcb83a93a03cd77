"""Parameters of a fine-tuned run."""

import functools

import jax

from t2t_flax.config import Config
from t2t_flax.extensions.finetuning import FineTuning, lora
from t2t_flax.extensions.finetuning.frozen import split_frozen
from t2t_flax.training.parametrization import Parametrization, Params


def parametrization(keys: FineTuning) -> Parametrization:
    """Return parameters that start from another run, are frozen or have adapters."""
    start, explain = _start if keys.init_from else None, functools.partial(_explain, keys)
    if not keys.lora_rank:
        split = functools.partial(split_frozen, keys.freeze)
        return Parametrization(split=split, start=start, explain=explain)
    return Parametrization(
        split=lora.split,
        extend=functools.partial(lora.with_adapters, keys),
        initial=_with_initial_adapters,
        merge=functools.partial(lora.merge, keys),
        merged_config=_without_adapters,
        start=start,
        explain=explain,
    )


def _start(setup, params: Params, group, say) -> Params:
    from t2t_flax.extensions.finetuning.start import start_params

    return {**params, **start_params(setup, dict(params), group, say)}


def _with_initial_adapters(params: Params, structs: Params, key: jax.Array) -> Params:
    init = functools.partial(lora.init_adapters, structs[lora.NAME])
    shardings = jax.tree.map(lambda x: x.sharding, structs[lora.NAME])
    return {**params, lora.NAME: jax.jit(init, out_shardings=shardings)(key)}


def _without_adapters(config: Config) -> Config:
    defaults = {
        name: getattr(FineTuning, name) for name in ("lora_rank", "lora_alpha", "lora_modules")
    }
    return config.with_values({f"finetuning.{name}": value for name, value in defaults.items()})


def _explain(k: FineTuning) -> list[str]:
    """Return a section of `explain`: the origin of the parameters."""
    if not k.init_from:
        return []
    rows = {"same": "its tokenizer", "by_piece": "another tokenizer, rows by piece"}[
        k.init_vocabulary
    ]
    return ["start", f"  parameters of {k.init_from}, checkpoint {k.init_checkpoint}, {rows}"]
