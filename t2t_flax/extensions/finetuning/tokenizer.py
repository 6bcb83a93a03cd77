"""Tokenizer of the run that finetuning.init_from names."""

from etils import epath

from t2t_flax.config import Config
from t2t_flax.data.hooks import DataHook
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.extensions import finetuning
from t2t_flax.model_forms import run_folder
from t2t_flax.registry import TOKENIZERS


class FineTuningHook(DataHook):
    def __init__(self, config: Config):
        self._keys, self._data = finetuning.of(config), config.data

    def tokenizer_folder(self) -> epath.Path | None:
        """Return the folder of the first run's tokenizer; None for a run with its own.

        Raises UserError if data.tokenizer_model names another one.
        """
        keys, data = self._keys, self._data
        if keys.init_vocabulary != "same":
            return None
        folder = run_folder(keys.init_from) / "tokenizer"
        own = epath.Path(data.root or ".") / data.tokenizer_model
        named = (
            data.tokenizer_model
            and not TOKENIZERS.load(data.tokenizer).inputs(data)
            and own.exists()
        )
        if (
            named
            and folder.is_dir()
            and TokenizerPair.load(own).digest != TokenizerPair.load(folder).digest
        ):
            raise UserError(
                f"config.data.tokenizer_model = {data.tokenizer_model!r} is not the tokenizer of"
                f" config.finetuning.init_from = {keys.init_from!r}, which"
                " config.finetuning.init_vocabulary = same takes: leave it out, or set"
                " init_vocabulary = by_piece."
            )
        return folder
