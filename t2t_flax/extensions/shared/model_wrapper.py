"""A model that decodes in its own way."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from t2t_flax.config import Model


@dataclasses.dataclass(frozen=True)
class ModelWrapper:
    """What decoding, scoring and the validation loss read of the model that it wraps, a Transformer or an ensemble of them."""

    model: Any

    @property
    def config(self) -> Model:
        """That of the model."""
        return self.model.config

    @property
    def dtype(self) -> jnp.dtype:
        """That of its products."""
        return self.model.dtype

    @property
    def target_vocab(self) -> int:
        """Rows of its target table."""
        return self.model.target_vocab

    def clone(self, **fields: Any) -> Any:
        """The model alone, with other fields."""
        return self.model.clone(**fields)
