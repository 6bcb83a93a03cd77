"""A decoder-only Transformer in place of the encoder-decoder: one stack reads the source and writes the target."""

from dataclasses import dataclass

from t2t_flax.config import Config, Model
from t2t_flax.config.keys import MODEL, key
from t2t_flax.errors import UserError
from t2t_flax.registry import ARCHITECTURES, GROUPS

_NEEDS: dict[str, tuple] = {
    "num_encoder_layers": (0,),
    "tie_embeddings": ("all",),
    "mixer": ("attention",),
    "position": ("sinusoid_interleaved", "sinusoid_halves", "none"),
}


@dataclass(frozen=True)
class DecoderOnly:
    source_attention: str = key(
        "full",
        "what a source token attends to: full = the whole source, as a prefix language model; causal = the source up to itself",
        choices=("full", "causal"),
        changes=MODEL,
        read_with=("model.architecture", "decoder_only"),
    )

    @classmethod
    def of(cls, config: Config | Model) -> "DecoderOnly":
        """Returns the group of a config."""
        return config.group("decoder_only")

    def check(self, config: Config) -> None:
        """Raises UserError for keys of the model that one stack cannot have."""
        if config.model.architecture != "decoder_only":
            return
        for name, allowed in _NEEDS.items():
            if (value := getattr(config.model, name)) not in allowed:
                raise UserError(
                    f"config.model.{name} = {value}: config.model.architecture = decoder_only, one stack for source and target, "
                    f"needs {' or '.join(map(str, allowed))}."
                )


ARCHITECTURES.add("decoder_only", "t2t_flax.extensions.decoder_only.model:DecoderOnlyTransformer")
GROUPS.add("decoder_only", DecoderOnly)
