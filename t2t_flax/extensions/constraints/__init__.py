"""Constraints: required and forbidden phrases, glossaries, rules on tokens.

Rules are penalties and limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.keys import READ, SCORES, TEXT, TRANSLATIONS, key, one_of
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS, SEARCHES, Group

CONSTRAINED = "constrained_beam"
TABS, JSON = "tabs", "json"


def _key(default, doc: str, **more):
    return key(default, doc, mutable=True, changes=TRANSLATIONS, **more)


@dataclass(frozen=True)
class Constraints(Group):
    lines: str = _key(
        "",
        "what source lines hold beside their text: tabs = phrases of the translation after tabs,"
        ' json = {"text": ..., "constraints": [...], "avoid": [...]}, where a list of phrases'
        " stands for any of them, or text; empty = nothing",
        kind=TEXT,
    )
    glossary: str = _key(
        "",
        "file of terms, one a line: a source phrase, a tab, its translation, further ones after"
        " tabs. A translation contains one of them where the source contains the phrase, in any"
        " case",
        kind=READ,
    )
    counted_terms: str = key(
        "",
        "file of terms, as constraints.glossary, of which evaluations count those that translations"
        " use; empty = the glossary",
        mutable=True,
        changes=SCORES,
        kind=READ,
    )
    avoid: str = _key("", "file of phrases, one a line, that no translation contains", kind=READ)
    ordered: bool = _key(
        False,
        "whether the phrases of a line occur in its order, without overlap",
        when=one_of("decode.strategy", CONSTRAINED),
    )
    suppress: str = _key(
        "", "tokens that are never written, separated by spaces, such as <unk>", kind=TEXT
    )
    no_repeat_ngram: int = _key(
        0,
        "length of the n-grams of tokens that are written once only; 0 = any number of times",
        low=0,
    )
    min_length: int = _key(0, "fewest tokens of a translation, EOS not included", low=0)
    repetition_penalty: float = _key(
        0.0,
        "divides positive logits of tokens that a hypothesis has, and multiplies negative ones"
        " (Keskar et al. 2019); 0 = none",
        low=0.0,
        high=100.0,
    )

    def check(self, config: Config) -> None:
        """Raise UserError for keys that need each other."""
        if self.lines not in ("", TABS, JSON):
            raise UserError(
                f"config.constraints.lines = {self.lines!r}: expected tabs, json or nothing."
            )
        contain = "glossary" if self.glossary else "lines" if self.lines == TABS else ""
        if contain and config.decode.strategy != CONSTRAINED:
            raise UserError(
                f"config.constraints.{contain} = {getattr(self, contain)!r} says what translations"
                f" contain, which needs config.decode.strategy = {CONSTRAINED}, not"
                f" {config.decode.strategy}."
            )
        if config.decode.strategy == CONSTRAINED and not (self.lines or self.glossary):
            raise UserError(
                f"config.decode.strategy = {CONSTRAINED} needs config.constraints.glossary, or "
                "config.constraints.lines = tabs or json."
            )

    @staticmethod
    def metrics() -> Sequence[Any]:
        from t2t_flax.extensions.constraints.term_use import TERM_USE

        return (TERM_USE,)

    def step_change(self, config: Config) -> Any:
        limits = self.no_repeat_ngram, self.min_length, self.repetition_penalty
        if not any((self.lines, self.glossary, self.avoid, self.suppress, *limits)):
            return None
        from t2t_flax.extensions.constraints import rule

        return rule


GROUPS.add("constraints", Constraints)
SEARCHES.add(CONSTRAINED, "t2t_flax.extensions.constraints.constrained:constrained_beam")
