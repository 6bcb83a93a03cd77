"""Config keys of the decoder CTranslate2."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import TRANSLATIONS, key


@dataclass(frozen=True)
class CTranslate2:
    quantization: str = key(
        "float32",
        "type of the matrices of decode.engine = ctranslate2",
        choices=("float32", "int8"),
        changes=TRANSLATIONS,
        mutable=True,
        read_with=("decode.engine", "ctranslate2"),
    )

    @classmethod
    def of(cls, config: Config) -> "CTranslate2":
        """The group of a config."""
        return config.group("ctranslate2")
