"""User constraints on a translation.

They come from the line itself and from files of terms and phrases.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator

from etils import epath

from t2t_flax.data.sources.text import lines
from t2t_flax.errors import UserError
from t2t_flax.extensions.constraints import JSON, TABS, Constraints
from t2t_flax.extensions.constraints.segmentation import continues_word
from t2t_flax.json_file import parse_json


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Constraints of a line.

    Args:
        text: text to translate.
        contain: required phrases, each with its alternatives.
        avoid: forbidden phrases.
    """

    text: str
    contain: tuple[tuple[str, ...], ...] = ()
    avoid: tuple[str, ...] = ()


def read_line(line: str, form: str, where: str) -> Wanted:
    """Parse a source line in the format of constraints.lines.

    Raises UserError, with the place, for a line in another format.
    """
    if form == TABS:
        text, *phrases = line.split("\t")
        return Wanted(text, tuple((phrase.strip(),) for phrase in phrases if phrase.strip()))
    if form != JSON or not line.lstrip().startswith("{"):
        return Wanted(line)
    try:
        found = parse_json(line)
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {error}. Expected {_EXPECTED}.") from None
    if not isinstance(found.get("text"), str) or found.keys() - _KEYS:
        raise UserError(f"{where}: expected {_EXPECTED}.")
    contain, avoid = found.get("constraints", []), found.get("avoid", [])
    if not (isinstance(contain, list) and isinstance(avoid, list)):
        raise UserError(f"{where}: constraints and avoid are lists. Expected {_EXPECTED}.")
    alternatives = [phrase if isinstance(phrase, list) else [phrase] for phrase in contain]
    for phrase in (*(phrase for several in alternatives for phrase in several), *avoid):
        if not isinstance(phrase, str) or not phrase.strip():
            raise UserError(f"{where}: {phrase!r} is no phrase. Expected {_EXPECTED}.")
    if [] in alternatives:
        raise UserError(f"{where}: an empty list among the constraints. Expected {_EXPECTED}.")
    return Wanted(found["text"], tuple(map(tuple, alternatives)), tuple(avoid))


_KEYS = {"text", "constraints", "avoid"}
_EXPECTED = (
    '{"text": "...", "constraints": ["phrase", ["one form", "or another"]], "avoid": ["phrase"]}'
)


@dataclasses.dataclass(frozen=True)
class Glossary:
    terms: dict[str, tuple[str, ...]]

    def find(self, source: str) -> list[tuple[str, ...]]:
        """Return the translations of each term found in a source sentence.

        Longer terms match before shorter ones.
        """
        if not self.terms:
            return []
        return [
            self.terms[self._longest_first[(match.lastindex or 1) - 1]]
            for match in self._pattern.finditer(source)
        ]

    @functools.cached_property
    def _longest_first(self) -> list[str]:
        return sorted(self.terms, key=len, reverse=True)

    @functools.cached_property
    def _pattern(self) -> re.Pattern:
        # One group per term: a match in any case need not be the phrase in lower case.
        return re.compile(
            "|".join(f"({_whole(term)})" for term in self._longest_first), re.IGNORECASE
        )


def contains(text: str, phrase: str) -> bool:
    """Return True if a text contains a phrase as whole words."""
    return re.search(_whole(phrase), text) is not None


def _whole(phrase: str) -> str:
    """Return a pattern that matches the phrase as whole words."""
    before = r"(?<!\w)" if continues_word(phrase[0]) else ""
    after = r"(?!\w)" if continues_word(phrase[-1]) else ""
    return f"{before}{re.escape(phrase)}{after}"


@functools.lru_cache(maxsize=4)
def read_glossary(path: str) -> Glossary:
    """Read the file of constraints.glossary.

    Raises UserError for a line that is no term.
    """
    terms: dict[str, tuple[str, ...]] = {}
    known: dict[str, tuple[str, ...]] = {}
    for number, line in _lines(path, "glossary"):
        source, *targets = (part.strip() for part in line.split("\t"))
        if not source or not targets or not all(targets):
            raise UserError(
                f"{path} line {number}: expected a source phrase, a tab and its translation."
            )
        if known.setdefault(source.lower(), tuple(targets)) != tuple(targets):
            raise UserError(
                f"{path} line {number}: {source!r} is there a second time with another translation."
                " Write all of them in one line, with tabs between."
            )
        terms[source] = tuple(targets)
    return Glossary(terms)


@functools.lru_cache(maxsize=4)
def read_phrases(path: str) -> tuple[str, ...]:
    """Read the file of constraints.avoid."""
    return tuple(line.strip() for _, line in _lines(path, "avoid"))


def _lines(path: str, key: str) -> Iterator[tuple[int, str]]:
    try:
        yield from (
            (number, line) for number, line in enumerate(lines(epath.Path(path)), 1) if line.strip()
        )
    except (OSError, UserError) as error:
        raise UserError(f"config.constraints.{key} = {path!r} cannot be read: {error}.") from None


def read_files(group: Constraints) -> tuple[Glossary, tuple[str, ...]]:
    """Return the glossary and the phrases to avoid in all lines.

    Raises UserError for a file that cannot be read.
    """
    glossary = read_glossary(group.glossary) if group.glossary else Glossary({})
    return glossary, read_phrases(group.avoid) if group.avoid else ()


def wanted(group: Constraints, line: str, where: str) -> Wanted:
    """Return all constraints on the translation of a line."""
    found, (glossary, phrases) = read_line(line, group.lines, where), read_files(group)
    return Wanted(
        found.text, (*found.contain, *glossary.find(found.text)), (*found.avoid, *phrases)
    )
