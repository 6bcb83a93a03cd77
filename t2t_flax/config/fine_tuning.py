"""What the keys of fine-tuning accept: a checkpoint of train.init_from, and patterns of parameters."""

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from t2t_flax.errors import UserError

if TYPE_CHECKING:
    from t2t_flax.config.schema import Train


def parse_init_checkpoint(text: str) -> dict[str, Any]:
    """The fields of a `checkpoint_selection.Choice` that train.init_checkpoint names: `best` is {"best": True}. Raises
    UserError for any other text.
    """
    if text == "newest":
        return {}
    if text == "best":
        return {"best": True}
    match = re.fullmatch(r"(average:)?([1-9][0-9]{0,8})", text)
    if not match:
        raise UserError(
            f"config.train.init_checkpoint = {text!r}: expected newest, best, the number of an update (1800), or average:N, "
            "the mean of the last N."
        )
    return {"average" if match[1] else "step": int(match[2])}


def patterns_of(text: str) -> list[str]:
    """The patterns in a key such as train.freeze, separated by spaces or commas."""
    return text.replace(",", " ").split()


def check_fine_tuning(t: "Train") -> None:
    """Raises UserError for a value that is none, and for a key without, or beside, one that it depends on."""
    parse_init_checkpoint(t.init_checkpoint)
    for name in ("lora_alpha", "lora_modules"):
        if not t.lora_rank and getattr(t, name) != getattr(type(t), name):
            raise UserError(f"config.train.{name} = {getattr(t, name)} is for adapters: set config.train.lora_rank.")
    for name, used in (("freeze", bool(t.freeze)), ("lora_modules", t.lora_rank > 0)):
        if used and not patterns_of(getattr(t, name)):
            raise UserError(f"config.train.{name} = {getattr(t, name)!r} names no parameters: give a pattern of paths.")
    if t.lora_rank and t.freeze:
        raise UserError(
            f"config.train.lora_rank = {t.lora_rank} trains adapters alone, all else is frozen already: leave out "
            "config.train.freeze."
        )
    for name in ("init_checkpoint", "init_vocabulary"):
        if not t.init_from and getattr(t, name) != getattr(type(t), name):
            raise UserError(
                f"config.train.{name} = {getattr(t, name)} is about the run to start from: name its workdir in "
                "config.train.init_from."
            )


def with_adapters_merged(train: "Train") -> "Train":
    """The keys of a run whose adapters have been added to its parameters."""
    names = ("lora_rank", "lora_alpha", "lora_modules")
    return dataclasses.replace(train, **{name: getattr(type(train), name) for name in names})
