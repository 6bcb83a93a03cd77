"""Changes of the texts of a pair: functions of the source, the target and a generator of random numbers."""

import re
import string
from collections import Counter
from collections.abc import Callable
from random import Random

Change = Callable[[str, str, Random], tuple[str, str]]

_FINAL = re.compile(r"\s*[.!?…。\uff01\uff1f।؟]+\s*$")
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_NEIGHBOURS = {
    letter: "".join(row[max(0, at - 1) : at] + row[at + 1 : at + 2]) for row in _ROWS for at, letter in enumerate(row)
}
"""Of each letter, those beside it on a keyboard."""
_TYPOS_PER_WORD = 0.1
_EMOJI = "😀😂😍😊👍🙏🔥🎉💪😢🤔😎💯✨🚀👏😅🥰☕🌍"
_PLACEHOLDERS = ("{{{0}}}", "<{0}>", "%{0}%", "__{0}__", "[{0}]", "${0}")
_NAMES = ("name", "x", "url", "item", "user", "n", "count", "link", "date", "0", "1", "2")
_SCRIPTS = (
    string.ascii_lowercase,
    string.ascii_letters + string.digits,
    "αβγδεζηθλμπρστφχψω",
    "абвгдежзиклмнопрстуфхцчшя",
)


def unpunctuated(source: str, target: str, random: Random) -> tuple[str, str]:
    """Without the final punctuation, where both sides have some and more than that."""
    shorter = _FINAL.sub("", source), _FINAL.sub("", target)
    both = shorter[0] != source and shorter[1] != target
    return shorter if both and all(map(str.strip, shorter)) else (source, target)


def typos(source: str, target: str, random: Random) -> tuple[str, str]:
    """Typos in about every tenth word of the source, in one at least."""
    words = source.split(" ")
    wrong = [i for i in range(len(words)) if random.random() < _TYPOS_PER_WORD] or [random.randrange(len(words))]
    for i in wrong:
        words[i] = with_typo(words[i], random)
    if len(words) > 2 and random.random() < _TYPOS_PER_WORD:  # a space is left out
        at = random.randrange(len(words) - 1)
        words[at : at + 2] = [words[at] + words[at + 1]]
    return " ".join(words), target


def with_typo(word: str, random: Random) -> str:
    """The word with two letters swapped, or one left out, doubled or replaced by its neighbour on the keyboard."""
    letters = [i for i, character in enumerate(word) if character.isalpha()]
    if len(letters) < 2:
        return word
    at, kind = random.choice(letters), random.randrange(4)
    if kind == 0 and at + 1 < len(word):
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == 1:
        return word[:at] + word[at + 1 :]
    if kind == 2 and (near := _NEIGHBOURS.get(word[at].lower())):
        other = random.choice(near)
        return word[:at] + (other.upper() if word[at].isupper() else other) + word[at + 1 :]
    return word[:at] + word[at] + word[at:]


def lower_case(source: str, target: str, random: Random) -> tuple[str, str]:
    """The source in lower case."""
    return source.lower(), target


def title_case(source: str, target: str, random: Random) -> tuple[str, str]:
    """Each word with a capital letter, then small ones."""
    first, second = (
        " ".join(word[:1].upper() + word[1:].lower() for word in text.split(" ")) for text in (source, target)
    )
    return first, second


def upper_case(source: str, target: str, random: Random) -> tuple[str, str]:
    """Both sides in upper case."""
    return source.upper(), target.upper()


def placeholders(source: str, target: str, random: Random) -> tuple[str, str]:
    """A placeholder for a word that both sides have once."""
    places = _shared_words(source, target)
    if not places:
        return source, target
    return _put(source, target, random.choice(places), random.choice(_PLACEHOLDERS).format(random.choice(_NAMES)))


def emoji(source: str, target: str, random: Random) -> tuple[str, str]:
    """An emoji after a word that both sides have once, or at the end."""
    sign, places = random.choice(_EMOJI), _shared_words(source, target)
    if not places:
        return f"{source} {sign}", f"{target} {sign}"
    word = places[random.randrange(len(places))]
    return _put(source, target, word, f"{word} {sign}")


def copies(source: str, target: str, random: Random) -> tuple[str, str]:
    """A few words of random characters in place of both texts."""
    letters = random.choice(_SCRIPTS)
    words = ("".join(random.choices(letters, k=random.randint(2, 6))) for _ in range(random.randint(1, 6)))
    text = " ".join(words)
    return text, text


def _shared_words(source: str, target: str) -> list[str]:
    """Words, names and numbers among them, that each side has once between spaces; a no-break space is within a word."""
    here, there = (Counter(text.split(" ")) for text in (source, target))
    return [word for word, count in here.items() if count == there[word] == 1 and any(map(str.isalnum, word))]


def _put(source: str, target: str, word: str, other: str) -> tuple[str, str]:
    """Both sides with `other` in place of the word."""
    first, second = (" ".join(other if one == word else one for one in text.split(" ")) for text in (source, target))
    return first, second


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (unpunctuated, typos, lower_case, title_case, upper_case, placeholders, emoji, copies)
}
"""By the keys of config.noise, in the same order."""
PUT_IN: dict[str, str] = {
    "emoji": " ".join(_EMOJI),
    "placeholders": " ".join(form.format(name) for form in _PLACEHOLDERS for name in _NAMES),
    "copies": " ".join(_SCRIPTS).lower(),
}
"""All signs that a change puts into text, by its key; in lower case, since a tokenizer may have no other."""
VERSION = 2
"""Of all changes: with another one, batches differ."""
