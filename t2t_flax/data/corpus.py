"""The prepared data of a run."""

import dataclasses

from t2t_flax.data.token_store import TokenStore
from t2t_flax.data.tokenizers import TokenizerPair


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenizers, the training store, and the stores of the validation sets, by the names of `Data.valid_sets`."""

    tokenizers: TokenizerPair
    train: TokenStore
    valid: dict[str, TokenStore]
