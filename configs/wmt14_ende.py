"""WMT14 English-German as in the paper (5.1): `:base` or `:big`.

    python -m t2t_flax train --config=configs/wmt14_ende.py:base --workdir=runs/wmt14_base

Data comes from TensorFlow Datasets (no TensorFlow needed), or from your own files:
--config.data.train=train.en,train.de --config.data.valid=newstest2013.en,newstest2013.de
--config.data.test=newstest2014.en,newstest2014.de. Published (tokenised, cased, compounds split):
base 27.3, big 28.4.

The presets `aiayn_base` and `aiayn_big` have the same values; most are also the defaults. Numbers
in brackets are sections of the paper.
"""

from t2t_flax.config import default_config


def get_config(size: str = "base"):
    if size not in ("base", "big"):
        raise KeyError(f"variant {size!r}: expected base or big")
    big = size == "big"
    c = default_config()

    # Data: 4.5 million pairs, about 37,000 pieces that both languages share (5.1).
    c.data.corpus = "WMT14 English-German"
    c.data.train = "tfds:wmt14_translate/de-en:train"
    c.data.valid = "tfds:wmt14_translate/de-en:validation"  # newstest2013
    c.data.test = "tfds:wmt14_translate/de-en:test"  # newstest2014
    c.data.vocab_size = 37_000
    c.data.batch_tokens = 25_000  # of each side in an update (5.1)

    # Model (3, Table 3): six layers a stack; one table for embeddings and output (3.4).
    c.model.num_encoder_layers = 6
    c.model.num_decoder_layers = 6
    c.model.d_model = 1024 if big else 512
    c.model.d_ff = 4096 if big else 2048
    c.model.num_heads = 16 if big else 8
    c.model.dropout = 0.3 if big else 0.1  # (5.4)
    c.loss.label_smoothing = 0.1  # (5.4)

    # Adam (5.3): the rate is d_model^-0.5 * min(t^-0.5, t * 4000^-1.5) at update t.
    c.optimizer.name = "adam"
    c.optimizer.b1 = 0.9
    c.optimizer.b2 = 0.98
    c.optimizer.eps = 1e-9
    c.optimizer.schedule = "noam"
    c.optimizer.warmup_steps = 4000

    # The run (5.2). Base averages its last 5 checkpoints, big its last 20 (6.1).
    c.train.steps = 300_000 if big else 100_000
    c.checkpoint.every_steps = 600 if big else 1500
    c.checkpoint.keep_last = 20 if big else 5
    c.checkpoint.average_last = 20 if big else 5
    c.eval.decode_every_steps = 10_000  # BLEU of 500 validation sentences on the way
    c.eval.decode_sentences = 500

    # Beam search (6.1).
    c.decode.beam_size = 4
    c.decode.alpha = 0.6  # of the length penalty
    c.decode.max_length_offset = 50  # output tokens beyond the source's length
    return c
