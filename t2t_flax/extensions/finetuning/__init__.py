"""Fine-tuning: a start from another run's parameters, also with another vocabulary.

Parameters may be frozen or have low-rank adapters.
"""

import re
from dataclasses import dataclass
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.keys import READ, TEXT, is_set, key
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS, Group


@dataclass(frozen=True)
class FineTuning(Group):
    init_from: str = key(
        "",
        "workdir of a run, or exported model, whose parameters and tokenizer this run starts from",
        kind=READ,
    )
    init_vocabulary: str = key(
        "same",
        "same = the tokenizer of finetuning.init_from; by_piece = this run's own tokenizer: rows of"
        " pieces that both know are copied, those of new pieces start near the mean of all",
        choices=("same", "by_piece"),
        when=is_set("finetuning.init_from"),
    )
    init_checkpoint: str = key(
        "newest",
        "checkpoint of finetuning.init_from: newest, best, the number of an update, or average:N ="
        " mean of the last N regular ones",
        kind=TEXT,
        when=is_set("finetuning.init_from"),
    )
    freeze: str = key(
        "",
        "parameters that are not trained: glob patterns of their paths, separated by spaces"
        " (encoder_* shared_embedding); empty = none",
        kind=TEXT,
    )
    lora_rank: int = key(
        0,
        "rank of the adapters that are trained in place of the parameters (LoRA, Hu et al. 2021); 0"
        " = none",
        low=0,
        high=4096,
        when=is_set("finetuning.init_from"),
    )
    lora_alpha: float = key(
        16.0,
        "adapters are scaled by lora_alpha / lora_rank",
        low=1e-6,
        when=is_set("finetuning.lora_rank"),
    )
    lora_modules: str = key(
        "*/query */value",
        "kernels that have adapters: glob patterns of their paths, separated by spaces"
        " (encoder_*/query)",
        kind=TEXT,
        when=is_set("finetuning.lora_rank"),
    )

    def check(self, config: Config) -> None:
        """Raise UserError for an invalid value, and for frozen parameters beside adapters."""
        parse_init_checkpoint(self.init_checkpoint)
        for name, used in (("freeze", bool(self.freeze)), ("lora_modules", self.lora_rank > 0)):
            if used and not patterns_of(getattr(self, name)):
                raise UserError(
                    f"config.finetuning.{name} = {getattr(self, name)!r} names no parameters: give"
                    " a pattern of paths."
                )
        if self.lora_rank and self.freeze:
            raise UserError(
                f"config.finetuning.lora_rank = {self.lora_rank} trains adapters alone, all else is"
                " frozen already: leave out config.finetuning.freeze."
            )

    def data_hook(self, config: Config) -> Any:
        if not self.init_from:
            return None
        from t2t_flax.extensions.finetuning.tokenizer import FineTuningHook

        return FineTuningHook(config)

    def parametrization(self, config: Config) -> Any:
        if not (self.init_from or self.freeze or self.lora_rank):
            return None
        from t2t_flax.extensions.finetuning.parametrization import parametrization

        return parametrization(self)


def of(config: Config) -> FineTuning:
    return config.group("finetuning")


def parse_init_checkpoint(text: str) -> dict[str, Any]:
    """Return the fields of a `CheckpointChoice` that finetuning.init_checkpoint names.

    `best` is {"best": True}. Raises UserError for any other text.
    """
    if text == "newest":
        return {}
    if text == "best":
        return {"best": True}
    match = re.fullmatch(r"(average:)?([1-9][0-9]{0,8})", text)
    if not match:
        raise UserError(
            f"config.finetuning.init_checkpoint = {text[:40]!r}: expected newest, best, the number"
            " of an update (1800), or average:N, the mean of the last N."
        )
    return {"average" if match[1] else "step": int(match[2])}


def patterns_of(text: str) -> list[str]:
    """Return the patterns in a key such as finetuning.freeze.

    Spaces or commas separate them.
    """
    return text.replace(",", " ").split()


GROUPS.add("finetuning", FineTuning)
