"""Interoperation with Hugging Face, CTranslate2 and safetensors.

Models are exported and imported, and CTranslate2 is a decoder.
"""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import TRANSLATIONS, key, one_of
from t2t_flax.model_forms import MODEL_FORMS, ModelForm
from t2t_flax.registry import (
    COMMANDS,
    DECODERS,
    GROUPS,
    TOKENIZER_FILES,
    Command,
    Group,
)


@dataclass(frozen=True)
class CTranslate2(Group):
    quantization: str = key(
        "float32",
        "type of the matrices of decode.engine = ctranslate2",
        choices=("float32", "int8"),
        changes=TRANSLATIONS,
        mutable=True,
        when=one_of("decode.engine", "ctranslate2"),
    )

    @classmethod
    def of(cls, config: Config) -> "CTranslate2":
        return config.group("ctranslate2")


COMMANDS.add(
    "export",
    Command(
        "t2t_flax.extensions.interop.export_command",
        "write a trained model for CTranslate2 or Hugging Face, or as safetensors",
    ),
)
COMMANDS.add(
    "import",
    Command(
        "t2t_flax.extensions.interop.import_command",
        "read a model of Hugging Face (Marian, M2M-100, NLLB), CTranslate2 or `export` as a run",
    ),
)
GROUPS.add("ctranslate2", CTranslate2)
MODEL_FORMS.add(
    "safetensors",
    ModelForm(
        "exported model, or pretrained:toy",
        "t2t_flax.extensions.interop.model_folder",
        prefix="pretrained:",
        file="model.safetensors",
    ),
)
DECODERS.add("ctranslate2", "t2t_flax.extensions.interop.ctranslate2_decoder:CTranslate2Decoder")
TOKENIZER_FILES.add(
    "SentencePiece model and vocabulary",
    "t2t_flax.extensions.interop.marian_tokenizer:MarianTokenizer",
)
TOKENIZER_FILES.add(
    "M2M-100 vocabulary", "t2t_flax.extensions.interop.m2m100_tokenizer:M2M100Tokenizer"
)
TOKENIZER_FILES.add(
    "symbols split at spaces", "t2t_flax.extensions.shared.list_tokenizer:SymbolTokenizer"
)
