"""Prepared data of a run."""

import dataclasses

from t2t_flax.data.token_store import TokenStore
from t2t_flax.data.tokenizers import TokenizerPair


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenizers and token stores of a run.

    Attributes:
        train: training store.
        valid: stores of the validation sets, by the names of `Data.valid_sets`.
    """

    tokenizers: TokenizerPair
    train: TokenStore
    valid: dict[str, TokenStore]
