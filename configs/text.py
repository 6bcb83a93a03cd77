"""Your own parallel text with a small model whose size fits the number of pairs.

    python -m t2t_flax train --config=configs/text.py --workdir=runs/mine \\
        --config.data.train=train.en,train.de --config.data.valid=valid.en,valid.de \\
        --config.data.test=test.en,test.de

The file counts the pairs of data.train and takes the first row of SIZES with room for them, with
more pieces for a script of many characters; `configs/text.py:7000` takes the row for 7,000 pairs
without counting. A key on the command line replaces a value of the row. The preset `text` is the
row for 29,000 pairs: `--config=text` works where this file is not at hand.
"""

import functools
import sys
from typing import NamedTuple

from t2t_flax.config import default_config
from t2t_flax.tasks import count_text


class Size(NamedTuple):
    layers: int  # of the encoder and of the decoder
    width: int  # d_model; d_ff is twice as wide
    dropout: float
    rate: float  # the largest learning rate, reached after `warmup` updates
    warmup: int
    pieces: int  # of the vocabulary, with room for FEW_CHARACTERS
    updates: int  # at most; the run stops earlier when BLEU no longer rises


# By the largest number of pairs. docs/experiments.md shows what else was tried.
SIZES = {
    4_000: Size(layers=2, width=256, dropout=0.3, rate=2e-3, warmup=300, pieces=2000, updates=3000),
    15_000: Size(
        layers=2, width=256, dropout=0.2, rate=1e-3, warmup=300, pieces=4000, updates=4000
    ),
    100_000: Size(
        layers=3, width=128, dropout=0.15, rate=4e-3, warmup=500, pieces=4000, updates=4500
    ),
}

FEW_CHARACTERS = 300  # Chinese or Japanese text has thousands, and each needs a piece


def get_config(pairs: str = "", overrides: dict[str, str] | None = None):
    overrides = overrides or {}
    size = _size_for(_number(pairs)) if pairs else _size_of(overrides)
    c = default_config()

    # Data: pieces that both languages share. Longer sentences are left out and counted.
    c.data.vocab_size = size.pieces
    c.data.max_length = 64

    # Batches: 46 rows of 64 tokens an update, each packed with several sentences.
    c.data.pack_length = 64
    c.data.batch_tokens = 3000

    # Model: the paper's, smaller, with more dropout for little text.
    c.model.num_encoder_layers = size.layers
    c.model.num_decoder_layers = size.layers
    c.model.d_model = size.width
    c.model.d_ff = 2 * size.width
    c.model.num_heads = 4
    c.model.dropout = size.dropout
    # Rows of the embedding table: 128, the default, would add many to a small one.
    c.model.pad_vocab_to_multiple = 8

    # Optimizer: Adam. The rate rises linearly and then falls with 1 / sqrt(t).
    c.optimizer.schedule = "inverse_sqrt"
    c.optimizer.peak_lr = size.rate
    c.optimizer.warmup_steps = size.warmup

    # The run ends when BLEU of the validation set has not risen in eight measurements. The loss
    # would end it too early: on little text BLEU rises for long after the loss has begun to.
    c.train.steps = size.updates
    c.eval.every_steps = 250
    if "data.valid" in overrides:
        c.eval.decode_every_steps = 250
        c.eval.decode_sentences = 500
        c.eval.metric = "bleu"
        c.eval.patience = 8

    # The mean of the last eight checkpoints is evaluated at the end (6.1).
    c.checkpoint.every_steps = 100
    c.checkpoint.keep_last = 8
    c.checkpoint.average_last = 8
    c.log.every_steps = 50
    c.mesh.cpu_devices = 2  # two cores as two devices
    return c


def _number(variant: str) -> int:
    if not variant.isdecimal():
        raise KeyError(f"variant {variant!r}: expected a number of pairs, such as 7000")
    return int(variant)


def _size_for(pairs: int) -> Size:
    return SIZES[min((most for most in SIZES if pairs <= most), default=max(SIZES))]


def _size_of(overrides: dict[str, str]) -> Size:
    if "data.train" not in overrides:  # as in `explain --config=configs/text.py`
        size = _size_for(29_000)
        _say("no data.train", size)
        return size
    pairs, characters = count_text(overrides)
    size = _size_for(pairs)
    reason = f"{pairs:,} pairs to train on"
    if characters > FEW_CHARACTERS:
        size = size._replace(pieces=size.pieces + characters - FEW_CHARACTERS)
        reason += f" in {characters:,} different characters"
    _say(reason, size)
    return size


@functools.cache  # once in a sweep
def _say(reason: str, size: Size) -> None:
    row = ", ".join(f"{name} {value:,}" for name, value in size._asdict().items())
    print(f"configs/text.py: {reason}, so {row}.", file=sys.stderr)
