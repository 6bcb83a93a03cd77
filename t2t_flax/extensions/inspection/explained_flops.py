"""The FLOPs of a config in `explain`."""

from t2t_flax.config import Config
from t2t_flax.models import flops
from t2t_flax.training.parameters import backward_of
from t2t_flax.training.train_state import TrainState


def lines(config: Config, state: TrainState, sizes: tuple[int, int]) -> list[str]:
    """A heading, FLOPs per target token at three lengths, and those of the whole run."""
    backward = backward_of(config, sizes[1], state.params)
    frozen = ", none for what is frozen" if backward else ""
    lines = [f"FLOPs of training per target token (forward and backward, 2 per multiply-add{frozen})"]
    per_token = {}
    for length in (27, 64, 256):
        one = flops.padded_tokens(1, length)
        per_token[length] = flops.training_flops(config.model, sizes[1], one, backward) / length
        lines.append(f"  pairs of {length:3} + {length:3} tokens          {per_token[length] / 1e6:>11,.1f} million")
    whole = per_token[27] * config.data.batch_tokens * config.train.steps
    lines.append(f"  whole run, pairs of 27 + 27         {whole:>11.2e} in all")
    return lines
