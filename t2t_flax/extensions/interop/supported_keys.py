"""Which values of the model's keys another program's architecture can express."""

from collections.abc import Mapping
from typing import Any

from t2t_flax.config import Model
from t2t_flax.errors import UserError


def require_supported(config: Model, supported: Mapping[str, tuple[Any, ...]], program: str, advice: str) -> None:
    """Raises UserError, naming the key, for a value that is not among its `supported` ones, or for heads of other widths than
    d_model / num_heads or with keys of their own.
    """
    width = config.d_model // config.num_heads
    heads = {"num_kv_heads": (0, config.num_heads), "d_k": (0, width), "d_v": (0, width)}
    for key, values in (dict(supported) | heads).items():
        value = getattr(config, key)
        if value not in values:
            allowed = " or ".join(dict.fromkeys(map(str, values)))
            raise UserError(
                f"model.{key} = {value} cannot be exported to {program}, which takes {allowed} there. {advice}"
            )
