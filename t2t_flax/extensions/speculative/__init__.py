"""Speculative decoding (Leviathan et al. 2023): a small model proposes tokens; those that greedy search would write are kept."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import NOTHING, key
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS, MODELS, ONE_OUTPUT, SEARCHES, STEPS

_SEARCH = "decode.strategy", "speculative"
_DRAFT = "speculative.draft"


@dataclass(frozen=True)
class Speculative:
    draft: str = key(
        "",
        "workdir of a smaller trained model with the same tokenizers, which proposes tokens; outputs are those of greedy search",
        changes=NOTHING,
        read_with=_SEARCH,
    )
    tokens: int = key(
        3, "tokens that the draft proposes at a time", unit="tokens", low=1, high=32, changes=NOTHING, read_with=_SEARCH
    )

    @classmethod
    def of(cls, config: Config) -> "Speculative":
        """The group of a config."""
        return config.group("speculative")

    def check(self, config: Config) -> None:
        """Raises UserError for a search without a draft, and for what does not decode with one."""
        if config.value(_SEARCH[0]) != _SEARCH[1]:
            return
        if not self.draft:
            raise UserError(
                "config.decode.strategy = speculative needs config.speculative.draft, a smaller trained model."
            )
        if config.decode.engine != "jax":
            raise UserError(
                f"config.decode.engine = {config.decode.engine}: speculative decoding needs decode.engine = jax."
            )
        others = [name for names in (*STEPS.values(), *MODELS.values()) for name in names if name != _DRAFT]
        if name := next(filter(config.value, others), ""):
            raise UserError(
                f"config.{name} = {config.value(name)}: speculative decoding is greedy search with one model and no rules; set "
                "another config.decode.strategy."
            )


GROUPS.add("speculative", Speculative)
SEARCHES.add("speculative", "t2t_flax.extensions.speculative.search:speculative")
ONE_OUTPUT.add("speculative")
MODELS.add("t2t_flax.extensions.speculative.draft", _DRAFT)
