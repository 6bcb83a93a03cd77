"""Config keys of the decoder CTranslate2."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import TRANSLATIONS, key
from t2t_flax.errors import UserError


@dataclass(frozen=True)
class CTranslate2:
    quantization: str = key(
        "float32",
        "type of the matrices of decode.engine = ctranslate2",
        choices=("float32", "int8"),
        changes=TRANSLATIONS,
        mutable=True,
    )

    @classmethod
    def of(cls, config: Config) -> "CTranslate2":
        """The group of a config."""
        return config.group("ctranslate2")

    def check(self, config: Config) -> None:
        """Raises UserError for a quantization without CTranslate2."""
        if self.quantization != "float32" and config.decode.engine != "ctranslate2":
            raise UserError(
                f"config.ctranslate2.quantization = {self.quantization} is for config.decode.engine = ctranslate2; it is "
                f"{config.decode.engine}."
            )
