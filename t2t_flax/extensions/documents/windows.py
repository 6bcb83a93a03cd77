"""Windows: a sentence after those before it in its document, each of which a separator ends: `A.<sep> B.<sep> C.`."""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Row, Source, one_line, sha256_of
from t2t_flax.data.sources.text import lines as lines_of_file
from t2t_flax.data.tokenizers import languages_of, split_symbols
from t2t_flax.errors import UserError


@dataclasses.dataclass(frozen=True)
class WindowForm:
    """What a window is made of; the keys of `Documents` with these names."""

    context: int
    target_context: int
    separator: str

    def join(self, sentences: Sequence[str]) -> str:
        """The window of sentences, the last of which is its own."""
        return f"{self.separator} ".join(sentences)

    def split(self, window: str) -> list[str]:
        """The sentences of a window."""
        first, *others = window.split(self.separator)
        return [first, *(text.removeprefix(" ") for text in others)]

    def of_target(self, context: int) -> int:
        """How many sentences stand before the target where `context` stand before the source."""
        return min(context, self.target_context)

    def begin(self, ids: Sequence[int], separator: int, head: int, context: int) -> int:
        """Where the last `context` sentences before the own one of a window begin; `head` if it has no more."""
        ends = [at + 1 for at, token in enumerate(ids) if token == separator]
        return ends[-context - 1] if len(ends) > context else head

    def windows(
        self, rows: Iterable[Row], documents: Iterator[str] | None, symbols: Sequence[str] = ()
    ) -> Iterator[Row]:
        """The rows with the sentences before them on both sides; further references are left alone. Rows: (source, target, ...),
        or (source,) of lines without targets. documents: the id of each row's document, which ends where the next id is another;
        None = rows with a blank source end documents.

        A blank side stays blank, and its row is in no window of a side that would need it. A pair that its source drops ends a
        document, as its text is not known. A source that holds the separator is a window already. Control symbols with which a
        source begins, `symbols` and those of languages such as `<2de>`, stand before the window of its own row alone.
        """
        before: collections.deque[Row] = collections.deque(maxlen=self.context)
        current: str | None = None
        for row in rows:
            if documents is not None and (document := next(documents)) != current:
                current = document
                before.clear()
            if isinstance(row, str):
                before.clear()
                yield row
                continue
            head, text = _head(row[0], symbols)
            if documents is None and not text.strip():
                before.clear()
                yield row
                continue
            if self.separator in text:
                yield row
                before.append((self.split(text)[-1], *row[1:]))
                continue
            row = text, *row[1:]
            blank = [not text.strip() for text in row[:2]]
            sides = [list(before), list(before)[len(before) - self.of_target(len(before)) :]]
            made = (
                text if blank[side] else self.join([*(other[side] for other in sides[side]), text])
                for side, text in enumerate(row[:2])
            )
            yield (head + next(made), *made, *row[2:])
            if not (blank[0] or any(blank) and self.target_context):
                before.append(row)

    def dropped(self, ids: Sequence[Sequence[int]], separators: Sequence[int], heads: Sequence[int], most: int) -> int:
        """How many of the oldest sentences of a window must go, so that no side has more than `most` tokens; all of the context
        where even that is not enough. ids: of the source, and perhaps of the target; separators: the id of theirs. heads: tokens
        before the first sentence of each, which stay.
        """
        context = ids[0].count(separators[0])
        for drop in range(context):
            left = context - drop, self.of_target(context - drop)
            sides = list(zip(ids, separators, heads, left, strict=False))
            if all(head + len(side) - self.begin(side, symbol, head, n) <= most for side, symbol, head, n in sides):
                return drop
        return context


def _head(text: str, symbols: Sequence[str]) -> tuple[str, str]:
    """(the symbols with which a source begins, each with a space; the rest)."""
    first = text.partition(" ")[0]
    found, rest = split_symbols(text, [*symbols, *([first] if languages_of([first]) else [])])
    return "".join(f"{symbol} " for symbol in found), rest


class Windows(Source):
    """The windows of a source; `references` are single sentences. ids: file of the ids of its documents, one a line. Raises
    UserError, with the location, for a text that holds the separator, and for a file of ids with another number of lines.
    """

    def __init__(self, source: Source, form: WindowForm, ids: epath.Path | None):
        super().__init__(source.spec, source.count, files=[*source.files, *([ids] if ids else [])])
        self._source, self._form, self._ids = source, form, ids
        self.reference_count, self.tag, self.reasons = source.reference_count, source.tag, source.reasons

    def read(self):
        return self._form.windows(self._checked(), self._documents() if self._ids else None)

    def _checked(self) -> Iterator[Row]:
        number = -1
        for number, row in enumerate(self._source.read()):
            if isinstance(row, str):
                yield row
                continue
            if any(self._form.separator in text for text in row):
                raise UserError(
                    f"{self._source.where(number)}: the text holds {self._form.separator}, which divides sentences here. Remove "
                    "it, or set config.documents.separator to a symbol that no text holds."
                )
            yield tuple(map(one_line, row))
        if self._ids and (count := sum(1 for _ in lines_of_file(self._ids))) != number + 1:
            raise self._unequal(count, number + 1)

    def _documents(self) -> Iterator[str]:
        assert self._ids
        count = 0
        for line in lines_of_file(self._ids):
            count += 1
            yield line
        raise self._unequal(count, sum(1 for _ in self._source.read()))

    def _unequal(self, ids: int, pairs: int) -> UserError:
        return UserError(
            f"{self._ids} has {ids} lines and {self.spec} {pairs} pairs: expected the id of a document for each pair"
        )

    def references(self):
        return self._source.references()

    def fingerprint(self):
        form = dataclasses.astuple(self._form)
        ids = file_sha256(self._ids) if self._ids else "blank lines"
        return sha256_of("windows", self._source.fingerprint(), ids, *map(str, form))

    def expected_count(self):
        return self._source.expected_count()

    def where(self, i):
        return self._source.where(i)


def documents_of(sources: Sequence[str], ids: epath.Path | None) -> list[tuple[str, list[int]]]:
    """(id, numbers of its sentences) of each document. sources: single sentences, of which blank ones divide documents without a
    file of ids; the id is then the document's number.
    """
    if ids:
        groups = itertools.groupby(enumerate(lines_of_file(ids)), key=lambda numbered: numbered[1])
        return [(name, [number for number, _ in group]) for name, group in groups]
    texts = itertools.groupby(range(len(sources)), key=lambda number: bool(sources[number].strip()))
    return [(str(count), list(group)) for count, group in enumerate((group for text, group in texts if text), 1)]
