"""Tokens before source sentences, of which each sentence gets one, chosen by name: the token of the language to write
(Johnson et al. 2017, section 3). They are a fact of the model, and stored beside its tokenizers.
"""

import dataclasses
import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from etils import epath

from t2t_flax.config import Data
from t2t_flax.config.data_keys import UNK
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write
from t2t_flax.json_file import read_json
from t2t_flax.registry import START_FLAGS

FILE = "starts.json"
_SYMBOL = re.compile(r"<2([A-Za-z][\w-]*)>|>>([^<>\s]+)<<")


class Direction(NamedTuple):
    """Codes of the source and the target language; the latter names the token before the source sentence."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def start_symbol(name: str) -> str:
    """The token of this name, a control symbol of the source tokenizer: `<2de>`."""
    return f"<2{name}>"


def start_name(token: str) -> str | None:
    """The name of a token as `start_symbol` writes it or as Marian's models do, `>>de<<`; None for another."""
    match = _SYMBOL.fullmatch(token)
    return match and (match[1] or match[2])


def codes_of(directions: Iterable[Direction]) -> Direction:
    """The codes of the source and the target language; "mul", ISO 639-2's code of several languages, where they differ."""
    sides = (set(codes) for codes in zip(*directions, strict=True))
    return Direction(*(min(codes) if len(codes) == 1 else "mul" for codes in sides))


@dataclasses.dataclass(frozen=True)
class Starts:
    """directions: those with training text. ids: of each token in the source vocabulary, by name. Both are empty for a model
    of one direction.
    """

    directions: tuple[Direction, ...] = ()
    ids: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the tokens, sorted."""
        return sorted(self.ids)

    def chosen(self, data: Data, name: str | None) -> str | None:
        """The name of the token for a translation: the requested one, or that of the single token; None for a model without
        tokens, which translates into data.target_language. Raises UserError for another name, and for none where there are
        several tokens.
        """
        if not self.ids:
            if name not in (None, data.target_language):
                raise UserError(
                    f"the model translates from {data.source_language} into {data.target_language}, not into {name!r}."
                )
            return None
        names, more = self.names, len(self.ids) - 20
        shown = ", ".join(names[:20]) + (f" and {more} more" if more > 0 else "")
        if name is None and len(names) > 1:
            flags = "".join(f", on the command line {flag}={names[0]}" for flag in START_FLAGS)
            raise UserError(f"the model translates into {shown}: choose one, by start= in Python{flags}.")
        if name is not None and name not in self.ids:
            raise UserError(f"the model does not translate into {name!r}, but into {shown}.")
        return name or names[0]


def read_starts(folder: epath.PathLike, vocab_size: int | None = None) -> Starts:
    """Those stored in the folder of a model's tokenizers. vocab_size: of the source tokenizer, if it is known. Raises UserError
    for a damaged file, and for ids that are not tokens of that vocabulary.
    """
    path = epath.Path(folder) / FILE
    if not path.exists():
        return Starts()
    content = read_json(path, {"directions": list, "ids": dict})
    directions, ids = content.get("directions") or [], content.get("ids") or {}
    if not all(isinstance(d, list) and len(d) == 2 and all(c and isinstance(c, str) for c in d) for d in directions):
        raise UserError(f"{path}: directions = {json.dumps(directions)[:100]}; expected pairs of language codes.")
    end = 2**31 if vocab_size is None else vocab_size
    for name, i in ids.items():
        if type(i) is not int or not UNK < i < end:
            raise UserError(
                f"{path}: ids has {name} = {json.dumps(i)[:100]}; expected the id of a token, below {end:,}."
            )
    if {target for _, target in directions} != ids.keys():
        raise UserError(f"{path}: the targets of its directions are not the names of its ids.")
    return Starts(tuple(Direction(*d) for d in directions), ids)


def write_starts(folder: epath.PathLike, starts: Starts) -> None:
    """What `read_starts` reads; no file without tokens."""
    path = epath.Path(folder) / FILE
    if starts.ids:
        atomic_write(path, json.dumps(dataclasses.asdict(starts), ensure_ascii=False) + "\n")
    else:
        path.unlink(missing_ok=True)
