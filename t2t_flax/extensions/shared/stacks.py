"""The stacks of a model, which not every architecture divides into encoder and decoder."""

from t2t_flax.config import Model
from t2t_flax.errors import UserError


def check_encoder_decoder(model: Model, what: str) -> None:
    """Raises UserError, with `what` reads the layers or the attention of an encoder and a decoder, for another architecture."""
    if model.architecture != "encoder_decoder":
        raise UserError(
            f"config.model.architecture = {model.architecture}: {what} reads an encoder and a decoder, which this model does not "
            "have."
        )
