"""Attention of a decoder to the encoder's output, which not every architecture has."""

from t2t_flax.config import Model
from t2t_flax.errors import UserError


def check_source_attention(model: Model, what: str) -> None:
    """Raises UserError, with `what` needs it, for a model without attention to an encoder's output."""
    if model.architecture != "encoder_decoder":
        raise UserError(
            f"config.model.architecture = {model.architecture}: {what} needs the attention of a decoder to an encoder, which "
            "this model does not have."
        )
