"""Translation directions of sources, sets and models."""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from t2t_flax.config import Config
from t2t_flax.data.hooks import config_of_set
from t2t_flax.data.tokenizers import Tokenizer

SEVERAL = "mul"
"""ISO 639-2's code of several languages."""


class Direction(NamedTuple):
    """Codes of the source and the target language."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def directions_of(config: Config, names: Iterable[str]) -> list[Direction]:
    """Return the directions of training sources and held-out sets, by their names."""
    data = [config_of_set(config, name).data for name in names]
    return list(dict.fromkeys(Direction(d.source_language, d.target_language) for d in data))


def model_directions(config: Config, source: Tokenizer) -> tuple[list[Direction], list[Direction]]:
    """Return (trained directions, others of the validation and test sets) of a model.

    The sets are named in its config.

    Args:
        source: tokenizer; its target languages say whether the model translates into several.
    """
    d, languages = config.data, source.target_languages
    own = Direction(d.source_language, d.target_language)
    if not languages:
        return [own], []
    trained = [one for one in directions_of(config, d.train_sources) if one.target in languages]
    sets = directions_of(config, [*d.valid_sets, *d.test_sets])
    others = [one for one in sets if one.target in languages and one not in trained]
    sources = list(source.source_languages) or [own.source]
    every = [
        Direction(*pair)
        for pair in itertools.product(sources, languages)
        if pair[0] != pair[1] or not source.source_languages
    ]
    return trained or every, others if trained else []


def codes_of(directions: Iterable[Direction]) -> Direction:
    """Return the source and target codes, `SEVERAL` where they differ."""
    sides = (set(codes) for codes in zip(*directions, strict=True))
    return Direction(*(min(codes) if len(codes) == 1 else SEVERAL for codes in sides))
