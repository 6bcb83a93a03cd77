"""Configuration: `ml_collections` at the edge, frozen dataclasses inside."""

from t2t_flax.config.resolve import (
    SCHEMA_VERSION,
    default_config,
    differences,
    from_json,
    load_config,
    override,
    resolve,
    to_json,
)
from t2t_flax.config.schema import (
    Checkpoint,
    Config,
    Data,
    Decode,
    Eval,
    Log,
    Loss,
    Mesh,
    Model,
    Optimizer,
    Seed,
    Train,
)

__all__ = [
    "SCHEMA_VERSION",
    "Checkpoint",
    "Config",
    "Data",
    "Decode",
    "Eval",
    "Log",
    "Loss",
    "Mesh",
    "Model",
    "Optimizer",
    "Seed",
    "Train",
    "default_config",
    "differences",
    "from_json",
    "load_config",
    "override",
    "resolve",
    "to_json",
]
