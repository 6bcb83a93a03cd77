"""HTML in a line: taken out before it is translated, and put around the aligned words afterwards. URLs and placeholders stay."""

import html
import html.parser
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

BREAKS = frozenset(
    "address article aside blockquote body br button caption center col colgroup dd details dialog div dl dt fieldset figcaption "
    "figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li link main menu meta nav "
    "noscript object ol optgroup option p pre script section select style summary table tbody td template textarea tfoot th "
    "thead title tr ul".split()
)
"""Elements that separate words and, in a document, what is translated at a time."""
VERBATIM = frozenset(["script", "style", "template", "noscript"])
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_BREAK = "\v"
"""A space where a break stands, which text does not have."""
_NAME = re.compile(r"<\s*([^\s/>]+)")
_PUNCTUATION = ".,;:!?…)]}»”’\"'"
_OPENING = "([{«„“‘\"'¿¡"
PROTECTED = re.compile(
    r"""(?:https?|ftp)://[^\s<>"]*[^\s<>".,;:!?)'\]}]|www\.[^\s<>"]*[^\s<>".,;:!?)'\]}]|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"""
    r"""|\$?\{\{?[^{}\s]*\}?\}|%\(\w+\)[a-z]|%(?:\d+\$)?[sd@]\b"""
)
"""URLs, e-mail addresses and placeholders such as {0}, {{name}}, ${name}, %s, %1$s, %(name)s."""


class Event(NamedTuple):
    """A part of HTML. kind: text (raw is the text without character references) | start | end | other. name: of a tag, in lower
    case.
    """

    kind: str
    raw: str
    name: str = ""


class Element(NamedTuple):
    """A pair of tags around words. number: of its start among the events, which tells equal elements apart."""

    number: int
    start: str
    end: str


Stack = tuple[Element, ...]
"""The elements around a word, the outermost first."""


class Piece(NamedTuple):
    """Markup without words. word: the source word before which it stands. spaces: whether one is before and after it."""

    raw: str
    word: int
    around: Stack
    spaces: tuple[bool, bool]


class _Parser(html.parser.HTMLParser):
    """Collects events. What is not to be translated (scripts, translate="no") becomes one event."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.events: list[Event] = []
        self._verbatim: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        raw, void = self.get_starttag_text() or "", tag in VOID
        keeps = (
            tag in VERBATIM or values.get("translate") == "no" or "notranslate" in (values.get("class") or "").split()
        )
        if self._inside or (keeps and not void):
            self._verbatim.append(raw)
            self._inside += [] if void else [tag]
        else:
            self.events.append(Event("other" if void else "start", raw, tag))

    def handle_startendtag(self, tag, attrs):
        self._add(Event("other", self.get_starttag_text() or "", tag))

    def handle_endtag(self, tag):
        if not self._inside:
            self.events.append(Event("end", f"</{tag}>", tag))
            return
        self._verbatim.append(f"</{tag}>")
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass
        if not self._inside:
            self._flush()

    def handle_data(self, data):
        if self._inside:
            self._verbatim.append(data if self._inside[-1] in ("script", "style") else html.escape(data, quote=False))
        else:
            self.events.append(Event("text", data))

    def handle_comment(self, data):
        self._add(Event("other", f"<!--{data}-->"))

    def handle_decl(self, decl):
        self._add(Event("other", f"<!{decl}>", "html"))

    def handle_pi(self, data):
        self._add(Event("other", f"<?{data}>"))

    def parse_html_declaration(self, i):
        if not self.rawdata.startswith("<![", i):
            return super().parse_html_declaration(i)
        # Python's parser fails at sections that SGML does not have.
        end = "]]>" if self.rawdata.startswith("<![CDATA[", i) else ">"
        place = self.rawdata.find(end, i)
        if place < 0:
            return -1
        self._add(Event("other", self.rawdata[i : place + len(end)]))
        return place + len(end)

    def close(self):
        super().close()
        self._flush()

    def _add(self, event: Event) -> None:
        if self._inside:
            self._verbatim.append(event.raw)
        else:
            self.events.append(event)

    def _flush(self) -> None:
        if self._verbatim:
            self.events.append(Event("other", "".join(self._verbatim)))
            self._verbatim, self._inside = [], []


def parse(text: str) -> list[Event]:
    """The events of HTML. Malformed HTML is no error: a tag without its other one is markup without words."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    return parser.events


class Fragment:
    """A line of HTML. text: its words, to be translated. plain: whether it has no markup."""

    def __init__(self, events: Sequence[Event]):
        self.plain = all(event.kind == "text" for event in events)
        elements = _pairs(events)
        self._read(events, elements)
        around_words = {element for stack in self.stacks for element in stack}
        if around_words != set(elements.values()):  # others are around parts of words alone: markup without words
            self._read(events, {number: one for number, one in elements.items() if one in around_words})
        self.elements = sorted(around_words)

    def _read(self, events: Sequence[Event], elements: Mapping[int, Element]) -> None:
        characters: list[str] = []
        stacks: list[Stack] = []
        others: list[tuple[int, str, Stack]] = []
        stack: list[Element] = []
        for number, event in enumerate(events):
            if event.kind == "text":
                characters += event.raw
                stacks += [tuple(stack)] * len(event.raw)
                continue
            if number not in elements:
                others.append((len(characters), event.raw, tuple(stack)))
            elif event.kind == "start":
                stack.append(elements[number])
            else:
                stack.remove(elements[number])
            if event.name in BREAKS:
                characters.append(_BREAK)
                stacks.append(tuple(stack))
        text = "".join(characters)
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        self.words = [text[begin:end] for begin, end in spans]
        self.text = " ".join(self.words)
        edges = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :] if self.words else ""
        self.edges = edges[0].replace(_BREAK, ""), edges[1].replace(_BREAK, "")
        within = [stacks[begin:end] for begin, end in spans]
        self.stacks = [max(of_word, key=of_word.count) for of_word in within]
        self._first = [of_word[0] for of_word in within]
        self._last = [of_word[-1] for of_word in within]
        self.pieces = []
        for at, raw, around in others:
            inside = any(begin < at < end for begin, end in spans)
            spaces = inside or text[at - 1 : at].isspace(), text[at : at + 1].isspace()
            self.pieces.append(Piece(raw, sum(begin < at for begin, _ in spans), around, spaces))

    def before(self, word: int) -> Stack:
        """The elements around punctuation before a word."""
        if self.words[word][0] in _OPENING:
            return self._first[word]
        return _common(self.stacks[word], self.stacks[word - 1] if word else ())

    def after(self, word: int) -> Stack:
        """The elements around punctuation after a word."""
        if self.words[word][-1] in _PUNCTUATION:
            return self._last[word]
        return _common(self.stacks[word], self.stacks[word + 1] if word + 1 < len(self.words) else ())


def _pairs(events: Sequence[Event]) -> dict[int, Element]:
    """The element of each start and end tag, by the number of its event, of elements around words that are nested properly."""
    found: dict[int, Element] = {}
    opened: list[int] = []
    for number, event in enumerate(events):
        if event.kind == "start":
            opened.append(number)
        elif event.kind == "end":
            same = [i for i, start in enumerate(opened) if events[start].name == event.name]
            if same:
                start = opened[same[-1]]
                del opened[same[-1] :]
                if any(e.kind == "text" and e.raw.strip() for e in events[start:number]):
                    name = _NAME.match(events[start].raw)
                    found[start] = found[number] = Element(
                        start, events[start].raw, f"</{name[1] if name else event.name}>"
                    )
    return found


def _common(one: Stack, other: Stack) -> Stack:
    count = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:count]


class Target(NamedTuple):
    """A word of a translation and the source word that it is aligned to."""

    text: str
    source: int


def aligned(words: Sequence[str], weights: np.ndarray) -> list[Target]:
    """Each target word with its heaviest source word; one without weights has that of the word before it."""
    targets: list[Target] = []
    for word, row in zip(words, weights, strict=True):
        targets.append(Target(word, int(row.argmax()) if row.any() or not targets else targets[-1].source))
    return targets


def missing(source: str, translation: str) -> bool:
    """Whether a URL or placeholder of the source is not in the translation as often."""
    kept = PROTECTED.findall(source)
    return any(translation.count(each) < kept.count(each) for each in kept)


def restored(sources: Sequence[str], targets: Sequence[Target], weights: np.ndarray) -> list[Target]:
    """The targets, with each URL and placeholder of the source that they lack in place of the word that is aligned to it, or
    before the next aligned one.
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
            debris = [i for i in own if not targets[i].text.strip(_PUNCTUATION + _OPENING).isalpha()]
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
    """The translation of a fragment as HTML: each word in the elements of the source word that it is aligned to, other markup
    before the words that follow it. No tag is lost. weights: float32 [target words, source words].
    """
    targets = aligned(translation.split(), weights)
    targets = restored(fragment.words, targets, weights)
    lost = _place_all(fragment, targets, weights)
    # Whatever stands before a source word goes before the first target word of that one or a later one.
    places: dict[int, list[Piece]] = {}
    for piece in sorted([*fragment.pieces, *lost], key=lambda piece: piece.word):
        later = (
            [i for i, target in enumerate(targets) if target.source >= piece.word]
            if piece.word < len(fragment.words)
            else []
        )
        places.setdefault(min(later, default=len(targets)), []).append(piece)
    writer = _Writer()
    for i, (text, source) in enumerate(targets):
        writer.space = i > 0
        for piece in places.get(i, []):
            writer.piece(piece)
        core = text.rstrip(".,;:!?") if PROTECTED.search(text) else text.strip(_PUNCTUATION + _OPENING)
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
    """Changes the source words of targets so that each element has a target word, and returns as pieces the tags of those for
    which there is none.
    """

    def elements(numbers: Iterable[Target]) -> Iterator[Element]:
        return (element for target in numbers for element in fragment.stacks[target.source])

    lost: list[Piece] = []
    for element in fragment.elements:
        if not fragment.words or element in elements(targets):
            continue
        own = [word for word, stack in enumerate(fragment.stacks) if element in stack]
        place = None
        # Where words were put in, their numbers are no longer those of the weights.
        order = (
            sorted(range(len(targets)), key=lambda i: -float(weights[i, own].max()))
            if len(targets) == len(weights)
            else []
        )
        for i in order:
            word = own[int(weights[i, own].argmax())]
            kept = set(elements(targets[:i] + targets[i + 1 :])) | set(fragment.stacks[word])
            if kept >= set(fragment.stacks[targets[i].source]):
                place = i, word
                break
        if place:
            targets[place[0]] = Target(targets[place[0]].text, place[1])
        else:
            outer = fragment.stacks[own[0]][: fragment.stacks[own[0]].index(element)]
            lost.append(Piece(element.start + element.end, own[0], outer, (True, True)))
    return lost


class _Writer:
    """Writes text within elements: closes and opens tags where these change."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._stack: Stack = ()
        self.space = False
        """Whether a space is due before the next text."""

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
        """All that was written, every element closed."""
        self._move((), space=False)
        return "".join(self._out)
