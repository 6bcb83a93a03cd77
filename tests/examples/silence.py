"""A decoder that says nothing."""

from t2t_flax.decoding.translator import Decoder, Hypothesis, Translation
from t2t_flax.errors import UserError
from t2t_flax.registry import DECODERS


class Silence(Decoder):
    name, version, dtype = "silence", "1", "float32"

    def __init__(self, model):
        self.model = model  # its config, params, tokenizers, mesh

    @staticmethod
    def check(config):
        if config.decode.strategy == "beam":
            raise UserError(
                "config.decode.engine = silence has no beam: set decode.strategy = greedy."
            )

    def translate(self, lines, **options):
        nothing = Hypothesis("", (), 0.0, 0.0, False)
        return [Translation((nothing,)) for _ in lines]


DECODERS.add("silence", "silence:Silence")
