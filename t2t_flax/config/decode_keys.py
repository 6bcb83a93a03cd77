"""Keys of decoding: the search, its limits, and the decoder."""

import functools
from dataclasses import dataclass

from t2t_flax.config.keys import TRANSLATIONS, key
from t2t_flax.registry import DECODERS

decode_key = functools.partial(key, mutable=True, changes=TRANSLATIONS)
"""A key of the search, which another decoding may choose anew."""


@dataclass(frozen=True)
class Decode:
    strategy: str = decode_key("beam", "how translations are searched for", choices=("beam", "greedy", "sample"))
    beam_size: int = decode_key(4, "hypotheses in the beam (6.1)", low=1, high=256)
    length_penalty: str = decode_key(
        "gnmt",
        "divisor of the log-probability of L tokens: ((5 + L) / 6)^alpha (6.1), L^alpha, or none",
        choices=("gnmt", "power", "none"),
    )
    alpha: float = decode_key(0.6, "exponent of the length penalty (6.1)", low=0.0, high=10.0)
    early_stopping: str = decode_key(
        "exact",
        "when the search for a sentence ends: once its result can no longer change, once beam_size hypotheses have finished "
        "(fairseq), or once the most likely one has",
        choices=("exact", "beam_full", "top_finished"),
    )
    max_length_offset: int = decode_key(
        50, "output tokens allowed beyond max_length_ratio * source tokens (6.1)", low=0, high=10**5
    )
    max_length_ratio: float = decode_key(1.0, "output tokens allowed per source token (6.1)", low=0.0, high=100.0)
    n_best: int = decode_key(
        1, "translations returned for each sentence, at most beam_size with beam search", low=1, high=1024
    )
    temperature: float = decode_key(1.0, "divides the logits in sampling", low=1e-4, high=1e4)
    top_k: int = decode_key(0, "sample from the k most likely tokens; 0 = all", low=0)
    top_p: float = decode_key(1.0, "sample from the most likely tokens with this total probability", low=1e-6, high=1.0)
    seed: int = decode_key(0, "seed of sampling", low=-(2**63), high=2**63 - 1)
    engine: str = decode_key("jax", "what decodes: the JAX search, or the decoder of an extension", choices=DECODERS)
    precision: str = decode_key(
        "auto",
        "precision of matrix products where a trained run translates, scores or is evaluated; auto = train.precision, but "
        "float32 in place of bfloat16 on a CPU, which has no fast bfloat16",
        choices=("auto", "float32", "tf32", "bfloat16"),
    )
    batch_size: int = key(
        32,
        "sentences decoded at once on each data shard; fewer where sources are long",
        low=1,
        high=2**13,
        mutable=True,
    )
    max_source_length: int = decode_key(
        1024, "longer sources are truncated to this length, EOS included, and reported", unit="tokens", low=2
    )
