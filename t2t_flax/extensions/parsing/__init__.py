"""Constituency parsing (6.3): trees as sequences, scored by evalb's labelled F1."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import TRANSLATIONS, key
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS, PRESET_MODULES, TASKS, TOKEN_RULES


@dataclass(frozen=True)
class ParsingKeys:
    grammar: bool = key(
        False,
        "whether the search writes nothing but trees over the words of the sentence: brackets in pairs, one tag for each word",
        mutable=True,
        changes=TRANSLATIONS,
    )

    def check(self, config: Config) -> None:
        """Raises UserError for another task."""
        if self.grammar and config.data.task != "parsing":
            raise UserError(f"config.parsing.grammar is for data.task = parsing, not {config.data.task}.")


TASKS.add("parsing", "t2t_flax.extensions.parsing.task:Parsing")
PRESET_MODULES.append("t2t_flax.extensions.parsing.presets")
GROUPS.add("parsing", ParsingKeys)
TOKEN_RULES.add("t2t_flax.extensions.parsing.grammar", "parsing.grammar")
