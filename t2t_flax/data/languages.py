"""The languages of a model: a fact of its parameters, stored beside its tokenizers as languages.json.

data.directions says what the sources of a run are translated into; a run that is trained with it, and an imported model, have
this file, whatever text they meet later.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence

from etils import epath

from t2t_flax.config import Data
from t2t_flax.config.directions import (
    SEVERAL,
    Direction,
    language_token,
    target_languages,
    trained_directions,
    untrained_directions,
)
from t2t_flax.config.special_tokens import UNK
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write
from t2t_flax.json_file import read_json

FILE = "languages.json"


@dataclasses.dataclass(frozen=True)
class Languages:
    """directions: with training text. target_ids: by code of a target language, the id of the token that comes before the
    source sentence to ask for it. Both are empty for a model of one direction, that of data.source_language and
    data.target_language.
    """

    directions: tuple[Direction, ...] = ()
    target_ids: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def targets(self) -> list[str]:
        """The target languages between which there is a choice, sorted; empty for a model of one direction."""
        return sorted(self.target_ids)

    def chosen(self, data: Data, language: str | None) -> str | None:
        """The target language of a translation: the requested one, or the only one; None for a model of one direction.

        Raises UserError if the model does not translate into it, or into several and none was requested.
        """
        if not self.target_ids:
            if language not in (None, data.target_language):
                raise UserError(
                    f"the model translates from {data.source_language} into {data.target_language}, not into {language!r}."
                )
            return None
        if language is None and len(self.target_ids) > 1:
            raise UserError(
                f"the model translates into {_shown(self.targets)}: choose one by target_language, on the command line "
                f"--target-language={self.targets[0]}."
            )
        if language is not None and language not in self.target_ids:
            raise UserError(f"the model does not translate into {language!r}, but into {_shown(self.targets)}.")
        return language or self.targets[0]

    def zero_shot(self, data: Data) -> list[Direction]:
        """The directions of validation and test sets for which there was no training text."""
        of_sets = [*trained_directions(data), *untrained_directions(data)] if self.target_ids else []
        return [direction for direction in of_sets if direction not in self.directions]

    def all_directions(self, data: Data) -> list[Direction]:
        """The directions, those with training text first; of a model of one direction the only one."""
        if not self.target_ids:
            return [Direction(data.source_language, data.target_language)]
        return [*self.directions, *self.zero_shot(data)]

    def pair(self, data: Data) -> tuple[str, str]:
        """Codes of the source and the target language; `SEVERAL` where there are several."""
        return pair_of(self.all_directions(data))


def pair_of(directions: Iterable[Direction]) -> tuple[str, str]:
    """Codes of the source and the target language of these directions; `SEVERAL` where there are several."""
    sources, targets = (set(codes) for codes in zip(*directions, strict=True))
    return (min(sources) if len(sources) == 1 else SEVERAL), (min(targets) if len(targets) == 1 else SEVERAL)


def _shown(languages: Sequence[str]) -> str:
    more = f" and {len(languages) - 20} more" if len(languages) > 20 else ""
    return ", ".join(languages[:20]) + more


def languages_of_training(data: Data, ids: Sequence[int]) -> Languages:
    """Of a model that is trained on data.train. ids: of the tokens of `target_languages(data)`."""
    return Languages(tuple(trained_directions(data)), dict(zip(target_languages(data), ids, strict=True)))


def read_languages(folder: epath.PathLike, vocab_size: int | None = None) -> Languages:
    """Those stored in the folder of a model's tokenizers. vocab_size: of the source tokenizer, if it is known.

    Raises UserError for a damaged file, and for ids that are not tokens of that vocabulary.
    """
    path = epath.Path(folder) / FILE
    if not path.exists():
        return Languages()
    content = read_json(path, {"directions": list, "target_ids": dict})
    directions, ids = content.get("directions") or [], content.get("target_ids") or {}
    if not all(
        isinstance(d, list) and len(d) == 2 and all(isinstance(code, str) and code for code in d) for d in directions
    ):
        raise UserError(f"{path}: directions = {json.dumps(directions)[:100]}; expected pairs of language codes.")
    end = 2**31 if vocab_size is None else vocab_size
    for code, i in ids.items():
        if type(i) is not int or not UNK < i < end:
            raise UserError(
                f"{path}: target_ids has {code} = {json.dumps(i)[:100]}; expected the id of a token, below {end:,}."
            )
    if {target for _, target in directions} != ids.keys():
        raise UserError(f"{path}: the targets of its directions are not the languages of its target_ids.")
    return Languages(tuple(Direction(*d) for d in directions), ids)


def write_languages(folder: epath.PathLike, languages: Languages) -> None:
    """What `read_languages` reads; no file for a model of one direction."""
    path = epath.Path(folder) / FILE
    if languages.target_ids:
        content = {"directions": list(map(list, languages.directions)), "target_ids": languages.target_ids}
        atomic_write(path, json.dumps(content, ensure_ascii=False) + "\n")
    else:
        path.unlink(missing_ok=True)


def symbols_of(languages: Languages) -> dict[str, int]:
    """{"<2de>": id}, as data.directions puts them before sources of text."""
    return {language_token(code): i for code, i in languages.target_ids.items()}
