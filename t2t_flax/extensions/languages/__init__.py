"""Languages: several directions in one model.

Symbols before the source sentence tell it the target language, and the source language if asked.
"""

import functools
import itertools
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from t2t_flax.config import Config, Data
from t2t_flax.config.data_keys import VALID_PREFIX
from t2t_flax.config.keys import TEXT, key
from t2t_flax.errors import UserError
from t2t_flax.extensions.shared.directions import Direction
from t2t_flax.extensions.shared.named_entries import named_entries
from t2t_flax.language import Language
from t2t_flax.registry import FLAGS, GROUPS, LINES, Flag, Group

BY_NAME = "by_name"
_DIRECTION = re.compile(r"(\w+)-(\w+)")


@dataclass(frozen=True)
class Languages(Group):
    directions: str = key(
        "",
        "the direction of each source of data.train, data.valid and data.test, as 'NAME=en-de,"
        " NAME=de-en'; by_name = those of sources named en-de or en-de.ANYTHING are their names. A"
        " symbol before the source sentences tells the target language. Empty = one direction,"
        " data.source_language to data.target_language",
        mutable=True,
        kind=TEXT,
    )
    source_symbol: bool = key(
        False,
        "a symbol of the source language, too: <from:en>, as imported models of M2M-100 and NLLB"
        " need it",
    )

    def check(self, config: Config) -> None:
        """Raise UserError as `parse_directions`, and for another task than translation."""
        if parse_directions(config) and config.data.task != "translation":
            raise UserError(
                f"config.languages.directions = {self.directions!r} is for data.task = translation,"
                f" not {config.data.task}."
            )

    def data_hook(self, config: Config) -> Any:
        if not self.directions:
            return None
        from t2t_flax.extensions.languages.hook import LanguagesHook

        return LanguagesHook(config)


def symbols_of(direction: Direction, source_symbol: bool) -> list[str]:
    """Return the control symbols before a source sentence: `<2de>`, and `<from:en>` if asked."""
    return [f"<2{direction.target}>", *([f"<from:{direction.source}>"] if source_symbol else [])]


def parse_directions(config: Config) -> Mapping[str, Direction]:
    """Return the direction of every training, validation and test source, by name.

    A source without a name is `train`, `valid` or `test`. Empty without languages.directions.
    Raises UserError for a name that no source has, a source without a direction, and held-out text
    in a language into which no training text is translated.
    """
    return _parse(config.group("languages").directions, config.data)


@functools.lru_cache(128)  # called for each request and batch; there may be hundreds of directions
def _parse(text: str, data: Data) -> Mapping[str, Direction]:
    if not text.strip():
        return types.MappingProxyType({})
    shown, names = f"config.languages.directions = {text!r}", _names(data)
    parts = [part.strip() for part in text.split(",")]
    given = ",".join(part for part in parts if part != BY_NAME)
    entries = named_entries(shown, given, list(names), "data.train, data.valid and data.test have")
    directions = {}
    for name, split in names.items():
        code = entries.get(name, name.partition(".")[0] if BY_NAME in parts else None)
        match = _DIRECTION.fullmatch(code) if code else None
        if name in entries and not match:
            raise UserError(
                f"{shown}: {code!r} is not a direction. Write two language codes as en-de; a region"
                " or script follows an underscore, as in en-zh_Hans."
            )
        if not match:
            why = "is not named after its direction" if BY_NAME in parts else "has no direction"
            raise UserError(
                f"{shown}: the source {name!r} of config.data.{split} {why}: add {name}=en-de or"
                " another one."
            )
        directions[name] = Direction(*match.groups())
    _check_codes(shown, directions.values())
    targets = sorted({directions[name].target for name in data.train_sources})
    for name, direction in directions.items():
        if targets and direction.target not in targets:
            raise UserError(
                f"{shown}: {name} is translated into {direction.target}, but no source of"
                " config.data.train is: the model would not know its symbol. It knows"
                f" {', '.join(targets)}."
            )
    return types.MappingProxyType(directions)


def _check_codes(shown: str, directions: Iterable[Direction]) -> None:
    """Raise UserError for an invalid language code.

    Also for a language with two codes, such as de, DE and deu.
    """
    spellings: dict[str, str] = {}
    for code in itertools.chain.from_iterable(directions):
        language = Language.read(code, "languages.directions")
        same = "_".join([language.base, *code.lower().split("_")[1:]])
        if (other := spellings.setdefault(same, code)) != code:
            raise UserError(
                f"{shown}: {other} and {code} would be two languages; write the code in one way."
            )


def _names(data: Data) -> dict[str, str]:
    """Map the name of each source to the first split that has it."""
    splits = {
        "train": data.train_sources,
        "valid": [name.removeprefix(VALID_PREFIX) for name in data.valid_sets],
        "test": data.test_sets,
    }
    names: dict[str, str] = {}
    for split, of_split in splits.items():
        names |= {name: split for name in of_split if name not in names}
    return names


GROUPS.add("languages", Languages)
FLAGS.add(
    "--source-language",
    Flag(
        LINES,
        "language of the lines, with a model that is told it: its symbol before lines without one",
        "CODE",
        module="t2t_flax.extensions.languages.flag:SourceLanguage",
    ),
)
FLAGS.add(
    "--target-language",
    Flag(
        LINES,
        "language to write, with a model of several: its symbol before lines without one",
        "CODE",
        module="t2t_flax.extensions.languages.flag:TargetLanguage",
    ),
)
