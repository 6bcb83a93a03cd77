"""The tokenizer of a run that starts from another one."""

from etils import epath

from t2t_flax.config import Config
from t2t_flax.model_forms import run_folder


def tokenizer_folder(config: Config) -> epath.Path | None:
    """Where the tokenizer of config.finetuning.init_from is; None for a run with its own."""
    keys = config.group("finetuning")
    return run_folder(keys.init_from) / "tokenizer" if keys.init_vocabulary == "same" else None
