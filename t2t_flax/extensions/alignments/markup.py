"""HTML in a line, removed before translation and put around the aligned words.

URLs and placeholders stay.
"""

import bisect
import collections
import html
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

BREAKS = frozenset(
    "address article aside blockquote body br button caption center col colgroup dd details dialog"
    " div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header"
    " hgroup hr html iframe legend li link main menu meta nav noscript object ol optgroup option p"
    " pre script section select style summary table tbody td template textarea tfoot th thead title"
    " tr ul".split()
)
"""Elements that separate words.

In a document, they separate the parts translated at a time.
"""
HIDDEN = frozenset(["script", "style", "template", "noscript"])
"""Elements that are left unchanged and are not shown."""
LITERAL = frozenset(["code", "kbd", "pre", "samp", "textarea", "var"])
"""Elements that are left unchanged unless they have translate="yes"."""
_RAW = frozenset(["script", "style", "textarea"])
"""Elements in which `<` begins no element."""
DEEPEST = 32
"""Maximum elements around a word; deeper ones become markup without words."""
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_BREAK = "\v"
"""Stand-in for a space at a break; text does not contain it."""
_NAME = re.compile(r"<\s*([^\s/>]+)")
_LETTER = re.compile(r"[a-zA-Z]")
_TAG = re.compile(
    r"<([a-zA-Z][^\t\n\r\f />]*+)"
    r"""(?:[^>=]++|=[\t\n\r\f ]*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?+)*+>"""
)
_UNQUOTED = re.compile(r"<([a-zA-Z][^\t\n\r\f />]*+)[^>]*+>")
_END_TAG = re.compile(r"</([a-zA-Z][^\t\n\r\f />]*+)[^>]*+>")
_ATTRIBUTE = re.compile(r"""([^\s/>=]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>]*+)))?""")
_PUNCTUATION = ".,;:!?…)]}»”’\"'"
_OPENING = "([{«„“‘\"'¿¡"
PROTECTED = re.compile(
    r"""(?:https?|ftp)://[^\s<>"]*[^\s<>".,;:!?)'\]}]|www\.[^\s<>"]*[^\s<>".,;:!?)'\]}]"""
    r"""|(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+"""
    r"""|\$?\{\{?[^{}\s]*\}?\}|%\(\w+\)[a-z]|%(?:\d+\$)?[sd@]\b"""
)
"""URLs, e-mail addresses and placeholders.

Placeholders are such as {0}, {{name}}, ${name}, %s, %1$s, %(name)s.
"""


class Event(NamedTuple):
    """A part of HTML.

    Attributes:
        kind: text (raw is the text without character references) | start | end | kept (an unchanged
            element) | other.
        name: tag name in lower case.
    """

    kind: str
    raw: str
    name: str = ""


class Element(NamedTuple):
    """A pair of tags around words.

    Args:
        number: index of its start among the events, which distinguishes equal elements.
    """

    number: int
    start: str
    end: str


Stack = tuple[Element, ...]
"""Elements around a word, the outermost first."""


class Piece(NamedTuple):
    """Markup without words.

    Args:
        word: source word that follows it.
        spaces: whether a space is before and after it.
    """

    raw: str
    word: int
    around: Stack
    spaces: tuple[bool, bool]


def parse(text: str) -> list[Event]:
    """Return the events of HTML in linear time.

    Malformed HTML is no error: an unpaired tag is markup without words, and a `<` that begins
    nothing is text.
    """
    events: list[Event] = []
    kept, depth, begin = "", 0, 0
    for kind, name, start, end in _markup(text):
        if not kept and kind == "start" and _is_kept(name, text[start:end]):
            kept, begin = name, start
        if not kept:
            raw = text[start:end]
            events.append(Event(kind, html.unescape(raw) if kind == "text" else raw, name))
            continue
        depth += (name == kept) * ((kind == "start") - (kind == "end"))
        if not depth:
            _add_kept(events, text[begin:end], kept)
            kept = ""
    if kept:
        _add_kept(events, text[begin:], kept)
    return events


def _markup(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield (kind, name, start, end) of each part of HTML."""
    at = done = 0
    tag, last, absent = _TAG, text.rfind(">"), set[str]()

    def until(closing: str, start: int) -> int:
        place = -1 if closing in absent else text.find(closing, start)
        if place < 0:
            absent.add(closing)  # not looked for again: each search reads the rest of the text
        return place + len(closing) if place >= 0 else -1

    while 0 <= (at := text.find("<", at)) < last:
        kind, name, end = "other", "", -1
        if match := tag.match(text, at):
            name, end = match[1].lower(), match.end()
            kind = "other" if name in VOID or text[end - 2] == "/" else "start"
        elif _LETTER.match(text, at + 1):
            tag = _UNQUOTED  # a quote that never ends
            continue
        elif match := _END_TAG.match(text, at):
            kind, name, end = "end", match[1].lower(), match.end()
        elif text.startswith("<!--", at):
            end = until("-->", at + 2)
        elif text.startswith("<![CDATA[", at):
            end = until("]]>", at)
        elif text.startswith(("<!", "<?", "</"), at):
            name, end = (
                "html" if _LETTER.match(text, at + 2) and text[at + 1] == "!" else "",
                until(">", at),
            )
        if end < 0:
            at += 1
            continue
        if done < at:
            yield "text", "", done, at
        yield kind, name, at, end
        at = done = end
        if kind == "start" and name in _RAW:
            close = re.compile(rf"</{name}[\s/>]", re.IGNORECASE).search(text, at)
            at = close.start() if close else len(text)
    if done < len(text):
        yield "text", "", done, len(text)


def _is_kept(name: str, tag: str) -> bool:
    """Return True if an element is left unchanged, by its name and its start tag."""
    attributes: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(tag, len(name) + 1) if "translate" in tag.lower() else ():
        attributes.setdefault(
            match[1].lower(), html.unescape(match[2] or match[3] or match[4] or "")
        )
    if attributes.get("translate", "no").lower() != "no":
        return name in HIDDEN
    return (
        name in HIDDEN
        or name in LITERAL
        or "translate" in attributes
        or "notranslate" in attributes.get("class", "").split()
    )


def _add_kept(events: list[Event], raw: str, name: str) -> None:
    """Add an element that is left unchanged.

    It joins an earlier one if only signs are between them: Ctrl+Alt.
    """
    name = "" if name in HIDDEN else name
    inline = name and name not in BREAKS
    if inline and len(events) > 1 and events[-2].kind == "kept" and events[-2].name not in BREAKS:
        between = events[-1]
        if between.kind == "text" and not any(c.isalnum() or c.isspace() for c in between.raw):
            raw = events[-2].raw + html.escape(between.raw, quote=False) + raw
            del events[-2:]
    events.append(Event("kept", raw, name))


class Fragment:
    """A line of HTML.

    Attributes:
        text: its words, to be translated.
        plain: whether it has no markup.
    """

    def __init__(self, events: Sequence[Event]):
        self.plain = all(event.kind == "text" for event in events)
        elements = _pairs(events)
        characters: list[str] = []
        numbers: list[int] = []
        """Stack number of each character."""
        known: dict[Stack, int] = {}
        tags: list[tuple[int, str, Stack, Element | None]] = []
        stack: list[Element] = []
        for number, event in enumerate(events):
            if event.kind == "text":
                characters += event.raw
                numbers += [known.setdefault(tuple(stack), len(known))] * len(event.raw)
                continue
            element = elements.get(number)
            if element is None:
                tags.append((len(characters), event.raw, tuple(stack), None))
            elif event.kind == "start":
                tags.append((len(characters), element.start + element.end, tuple(stack), element))
                stack += [element] if len(stack) < DEEPEST else []
            elif stack and stack[-1] is element:
                stack.pop()
            if event.name in BREAKS:
                characters.append(_BREAK)
                numbers.append(-1)
        text = "".join(characters)
        begins = [match.start() for match in re.finditer(r"\S+", text)]
        ends = [match.end() for match in re.finditer(r"\S+", text)]
        self.words = [text[begin:end] for begin, end in zip(begins, ends, strict=True)]
        self.text = " ".join(self.words)
        edges = (
            text[: len(text) - len(text.lstrip())],
            text[len(text.rstrip()) :] if self.words else "",
        )
        self.edges = edges[0].replace(_BREAK, ""), edges[1].replace(_BREAK, "")
        stacks = list(known)
        counts = [
            collections.Counter(numbers[begin:end]) for begin, end in zip(begins, ends, strict=True)
        ]
        self.stacks = [stacks[max(of_word, key=of_word.__getitem__)] for of_word in counts]
        around_words = {element for stack in set(self.stacks) for element in stack}
        self.elements = sorted(around_words)

        def only_around_words(stack: Stack) -> Stack:
            return tuple(element for element in stack if element in around_words)

        stacks = list(map(only_around_words, stacks))
        self._first = [stacks[numbers[begin]] for begin in begins]
        self._last = [stacks[numbers[end - 1]] for end in ends]
        self.pieces = []
        for at, raw, around, tag in tags:
            if tag in around_words:
                continue
            word = bisect.bisect_left(begins, at)
            inside = word > 0 and at < ends[word - 1]
            spaces = inside or text[at - 1 : at].isspace(), text[at : at + 1].isspace()
            self.pieces.append(Piece(raw, word, only_around_words(around), spaces))

    def before(self, word: int) -> Stack:
        """Return the elements around punctuation before a word."""
        if self.words[word][0] in _OPENING:
            return self._first[word]
        return _common(self.stacks[word], self.stacks[word - 1] if word else ())

    def after(self, word: int) -> Stack:
        """Return the elements around punctuation after a word."""
        if self.words[word][-1] in _PUNCTUATION:
            return self._last[word]
        return _common(
            self.stacks[word], self.stacks[word + 1] if word + 1 < len(self.words) else ()
        )


def _pairs(events: Sequence[Event]) -> dict[int, Element]:
    """Map the event number of each start and end tag around words to its element.

    Elements are nested properly.
    """
    found: dict[int, Element] = {}
    opened: list[int] = []
    places: dict[str, list[int]] = collections.defaultdict(list)
    """Places in `opened` by name."""
    words = list(
        itertools.accumulate(event.kind == "text" and not event.raw.isspace() for event in events)
    )
    for number, event in enumerate(events):
        if event.kind == "start":
            places[event.name].append(len(opened))
            opened.append(number)
        elif event.kind == "end" and places[event.name]:
            place = places[event.name][-1]
            for inner in opened[place:]:
                places[events[inner].name].pop()
            start = opened[place]
            del opened[place:]
            if words[number] > words[start]:
                name = _NAME.match(events[start].raw)
                found[start] = found[number] = Element(
                    start, events[start].raw, f"</{name[1] if name else event.name}>"
                )
    return found


def _common(one: Stack, other: Stack) -> Stack:
    count = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    return one[:count]


class Target(NamedTuple):
    """A word of a translation and its aligned source word."""

    text: str
    source: int


def aligned(words: Sequence[str], weights: np.ndarray) -> list[Target]:
    """Align each target word with its heaviest source word.

    A word without weights takes the source word of the word before it.
    """
    targets: list[Target] = []
    for word, row in zip(words, weights, strict=True):
        targets.append(
            Target(word, int(row.argmax()) if row.any() or not targets else targets[-1].source)
        )
    return targets


def missing(source: str, translation: str) -> bool:
    """Return True if the translation lacks a URL or placeholder of the source.

    It must occur as often as in the source.
    """
    kept = collections.Counter(PROTECTED.findall(source))
    return any(translation.count(each) < count for each, count in kept.items())


def restored(
    sources: Sequence[str], targets: Sequence[Target], weights: np.ndarray
) -> list[Target]:
    """Return the targets with the source's missing URLs and placeholders restored.

    Each replaces the word that is aligned to it, or goes before the next aligned one.
    """
    out: list[Target | None] = list(targets)
    inserted: dict[int, list[Target]] = {}
    used: set[int] = set()
    have = " ".join(target.text for target in targets)
    for word, text in enumerate(sources):
        for item in PROTECTED.findall(text):
            if item in have:
                have = have.replace(item, " ", 1)
                continue
            own = [i for i, target in enumerate(targets) if target.source == word and i not in used]
            own = [i for i in own if not PROTECTED.search(targets[i].text)]
            debris = [
                i for i in own if not targets[i].text.strip(_PUNCTUATION + _OPENING).isalpha()
            ]
            replaced = debris or [i for i in own if weights[i, word] >= 0.5][:1]
            if replaced:
                used |= set(replaced)
                last = targets[replaced[-1]].text
                end = last[len(last.rstrip(_PUNCTUATION)) :] if last.strip(_PUNCTUATION) else ""
                out[replaced[0]] = Target(item + end, word)
                for i in replaced[1:]:
                    out[i] = None
            else:
                later = [i for i, target in enumerate(targets) if target.source >= word]
                inserted.setdefault(min(later, default=len(targets)), []).append(Target(item, word))
    result: list[Target] = []
    for i in range(len(out) + 1):
        result += inserted.get(i, [])
        if i < len(out) and (target := out[i]) is not None:
            result.append(target)
    return result


def carried_over(fragment: Fragment, translation: str, weights: np.ndarray) -> str:
    """Return the translation of a fragment as HTML.

    Each word gets the elements of its aligned source word. Other markup goes before the words that
    follow it. No tag is lost.

    Args:
        weights: float32 [target words, source words].
    """
    targets = aligned(translation.split(), weights)
    targets = restored(fragment.words, targets, weights)
    lost = _place_all(fragment, targets, weights)
    # Markup before a source word goes before the first target word aligned to it or a later word.
    places: dict[int, list[Piece]] = {}
    furthest = list(itertools.accumulate((target.source for target in targets), max))
    for piece in sorted([*fragment.pieces, *lost], key=lambda piece: piece.word):
        last = piece.word == len(fragment.words)
        place = len(targets) if last else bisect.bisect_left(furthest, piece.word)
        places.setdefault(place, []).append(piece)
    writer = _Writer()
    for i, (text, source) in enumerate(targets):
        writer.space = i > 0
        for piece in places.get(i, []):
            writer.piece(piece)
        core = (
            text.rstrip(".,;:!?") if PROTECTED.search(text) else text.strip(_PUNCTUATION + _OPENING)
        )
        core = core or text
        begin = text.index(core)
        parts = (
            (text[:begin], fragment.before(source)),
            (core, fragment.stacks[source]),
            (text[begin + len(core) :], fragment.after(source)),
        )
        for part, stack in parts:
            if part:
                writer.text(part, stack)
    writer.space = False
    for piece in places.get(len(targets), []):
        writer.piece(piece)
    return fragment.edges[0] + writer.finish() + fragment.edges[1]


def _place_all(fragment: Fragment, targets: list[Target], weights: np.ndarray) -> list[Piece]:
    """Change the source words of targets so that each element has a target word.

    Returns:
        Tags of the elements without a target word.
    """
    count = collections.Counter(
        element for target in targets for element in fragment.stacks[target.source]
    )
    words: dict[Element, list[int]] = collections.defaultdict(list)
    for word, stack in enumerate(fragment.stacks):
        for element in stack:
            words[element].append(word)
    lost: list[Piece] = []
    for element in fragment.elements:
        if count[element]:
            continue
        own = words[element]
        # Once words are inserted, target numbers no longer match the rows of the weights.
        best = weights[:, own].max(1) if len(targets) == len(weights) else np.zeros(0)
        for i in np.argsort(-best, kind="stable").tolist():
            word = own[int(weights[i, own].argmax())]
            before, after = fragment.stacks[targets[i].source], fragment.stacks[word]
            if all(count[each] > 1 or each in after for each in reversed(before)):
                count.subtract(before)
                count.update(after)
                targets[i] = Target(targets[i].text, word)
                break
        else:
            outer = fragment.stacks[own[0]][: fragment.stacks[own[0]].index(element)]
            lost.append(Piece(element.start + element.end, own[0], outer, (True, True)))
    return lost


class _Writer:
    """Writer of text within elements: closes and opens tags where these change."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._stack: Stack = ()
        self.space = False
        """True if the next text needs a space before it."""

    def text(self, text: str, stack: Stack) -> None:
        self._move(stack)
        self._out.append(html.escape(text, quote=False))

    def piece(self, piece: Piece) -> None:
        before, after = piece.spaces
        if self.space and before:
            self._out.append(" ")
        self._move(piece.around, space=False)
        self._out.append(piece.raw)
        self.space = self.space and (after or not before)

    def _move(self, stack: Stack, *, space: bool = True) -> None:
        shared = _common(self._stack, stack)
        self._out += [element.end for element in reversed(self._stack[len(shared) :])]
        if space and self.space:
            self._out.append(" ")
            self.space = False
        self._out += [element.start for element in stack[len(shared) :]]
        self._stack = stack

    def finish(self) -> str:
        """Close every element and return the written text."""
        self._move((), space=False)
        return "".join(self._out)
