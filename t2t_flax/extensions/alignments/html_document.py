"""HTML documents whose text is translated a block at a time."""

import html
from collections.abc import Sequence

from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.extensions.alignments.markup import BREAKS, Event, Fragment, parse
from t2t_flax.extensions.alignments.outputs import html_of


class HtmlDocument:
    """A document in parts between block elements and line breaks. lines: the text of the parts that have any, which is to be
    translated.
    """

    def __init__(self, text: str):
        self._parts: list[str | Fragment] = []
        inline: list[Event] = []
        for event in [*parse(text), None]:
            if event and event.name not in BREAKS:
                inline.append(event)
                continue
            self._add(inline)
            inline = []
            if event:
                self._parts.append(event.raw)
        self.lines = [part.text for part in self._fragments]

    def _add(self, events: list[Event]) -> None:
        if any(event.kind == "text" and event.raw.strip() for event in events):
            self._parts.append(Fragment(events))
        else:
            self._parts += [html.escape(e.raw, quote=False) if e.kind == "text" else e.raw for e in events]

    @property
    def _fragments(self) -> list[Fragment]:
        return [part for part in self._parts if isinstance(part, Fragment)]

    def translated(self, model: TrainedModel, sources: Sequence[str], translations: Sequence[str]) -> str:
        """The document with the translations of its lines. sources: these lines as the model reads them."""
        done = iter(html_of(model, self._fragments, sources, translations))
        return "".join(next(done) if isinstance(part, Fragment) else part for part in self._parts)
