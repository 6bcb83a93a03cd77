"""Configuration: `ml_collections` at the edge, frozen dataclasses inside."""

from t2t_flax.config.overrides import (
    NOT_A_CONFIG,
    as_json,
    check_changes,
    default_config,
    differences,
    format_differences,
    from_json,
    immutable_differences,
    override,
    resolve,
    to_config_dict,
    to_json,
)
from t2t_flax.config.presets import from_python_file, load_config
from t2t_flax.config.schema import (
    Checkpoint,
    Config,
    Data,
    Decode,
    Distributed,
    Eval,
    Log,
    Loss,
    Mesh,
    Model,
    Optimizer,
    Seed,
    Train,
)
