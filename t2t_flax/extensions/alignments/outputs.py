"""Alignments and markup in the output of `translate`."""

import html
from collections.abc import Sequence

import numpy as np

from t2t_flax.cli.arguments import Change
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.extensions.alignments.attention import Pair, word_weights
from t2t_flax.extensions.alignments.choice import head_of
from t2t_flax.extensions.alignments.links import hard_links, links_from, pharaoh, soft
from t2t_flax.extensions.alignments.markup import (
    BREAKS,
    Event,
    Fragment,
    aligned,
    carried_over,
    missing,
    parse,
    restored,
)
from t2t_flax.registry import GROUPS


class AlignmentForm:
    """Format of alignments: hard | soft | a threshold.

    Raises UserError for another value.
    """

    def __init__(self, form: str):
        try:
            self._threshold = 1.0 if form in ("hard", "soft") else float(form)
        except ValueError:
            self._threshold = np.nan
        if not 0 < self._threshold <= 1:
            raise UserError(
                f"--alignments={form}: expected hard, soft, or a probability above 0 up to 1."
            )
        self._form = form

    def __call__(self, weights: np.ndarray) -> str:
        """Format weights [target words, source words] as text."""
        if self._form == "soft":
            return soft(weights)
        return pharaoh(
            hard_links(weights) if self._form == "hard" else links_from(weights, self._threshold)
        )


class WithAlignments(Change):
    """Print word alignments after translations: `TRANSLATION ||| 0-0 1-1`."""

    def __init__(self, model: TrainedModel, form: str):
        super().__init__(model, form)
        self._form = AlignmentForm(form)
        self._head = head_of(model)

    def answers(
        self, lines: Sequence[str], sources: Sequence[str], n_best: Sequence[Sequence[str]]
    ) -> list[list[str]]:
        """Return the translations with their alignments."""
        rows = zip(lines, sources, n_best, strict=True)
        pairs = [Pair(source, text, line) for line, source, texts in rows for text in texts]
        weights = iter(word_weights(self.model, pairs, self._head))
        return [[f"{text} ||| {self._form(next(weights))}" for text in texts] for texts in n_best]


def html_of(
    model: TrainedModel,
    fragments: Sequence[Fragment],
    sources: Sequence[str],
    translations: Sequence[str],
) -> list[str]:
    """Return the translations of fragments with their markup.

    Args:
        sources: text of the fragments as the model reads it.
    """
    weights = _weights(
        model, fragments, sources, translations, [not fragment.plain for fragment in fragments]
    )
    rows = zip(fragments, translations, weights, strict=True)
    return [
        html.escape(text, quote=False) if own is None else carried_over(part, text, own)
        for part, text, own in rows
    ]


def _weights(
    model: TrainedModel,
    fragments: Sequence[Fragment],
    sources: Sequence[str],
    translations: Sequence[str],
    needed: Sequence[bool],
) -> list[np.ndarray | None]:
    """Return `word_weights` of the translations that need them.

    Translations that lack URLs or placeholders need them, too. The others, most lines of most
    texts, get None.
    """
    rows = list(zip(fragments, sources, translations, needed, strict=True))
    chosen = [i for i, (part, _, text, need) in enumerate(rows) if need or missing(part.text, text)]
    pairs = [Pair(source, text, part.text) for part, source, text, _ in (rows[i] for i in chosen)]
    found = dict(
        zip(chosen, word_weights(model, pairs, head_of(model)) if pairs else [], strict=True)
    )
    return [found.get(i) for i in range(len(rows))]


class HtmlDocument:
    """HTML document that is translated part by part.

    Block elements and line breaks separate the parts.

    Attributes:
        lines: text of the parts, to be translated.
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
            self._parts += [
                html.escape(e.raw, quote=False) if e.kind == "text" else e.raw for e in events
            ]

    @property
    def _fragments(self) -> list[Fragment]:
        return [part for part in self._parts if isinstance(part, Fragment)]

    def translated(
        self, model: TrainedModel, sources: Sequence[str], translations: Sequence[str]
    ) -> str:
        """Return the document with the translations of its lines.

        Args:
            sources: the lines as the model reads them.
        """
        done = iter(html_of(model, self._fragments, sources, translations))
        return "".join(next(done) if isinstance(part, Fragment) else part for part in self._parts)


class WithTags(Change):
    """`--tags`: carries over HTML (`html`), or URLs and placeholders alone (`text`)."""

    document = HtmlDocument

    def __init__(self, model: TrainedModel, form: str):
        if form not in ("html", "text"):
            raise UserError(f"--tags={form}: expected html or text.")
        super().__init__(model, form)
        self._html = form == "html"
        if (
            self._html
            and "constraints" in GROUPS
            and (lines := model.config.value("constraints.lines"))
        ):
            raise UserError(
                f"--tags=html cannot be combined with config.constraints.lines = {lines}: what"
                " stands beside the text would be read as markup. Leave out one of them;"
                " constraints.glossary works with tags."
            )
        head_of(model)  # fails here rather than at each line

    def source(self, line: str) -> str:
        """Return the line without its markup."""
        return Fragment(parse(line)).text if self._html else line

    def answers(
        self, lines: Sequence[str], sources: Sequence[str], n_best: Sequence[Sequence[str]]
    ) -> list[list[str]]:
        """Return the translations with the markup of their lines.

        URLs and placeholders that they lacked are restored.
        """
        read = parse if self._html else lambda line: [Event("text", line)]
        of_lines = [Fragment(read(line)) for line in lines]
        texts = [text for texts in n_best for text in texts]
        fragments = [
            fragment for fragment, texts in zip(of_lines, n_best, strict=True) for _ in texts
        ]
        sources = [source for source, texts in zip(sources, n_best, strict=True) for _ in texts]
        if self._html:
            made = html_of(self.model, fragments, sources, texts)
            # Newline from a character reference.
            done = iter([text.replace("\n", "&#10;") for text in made])
        else:
            weights = _weights(self.model, fragments, sources, texts, [False] * len(texts))
            done = map(_with_protected, fragments, texts, weights)
        return [[next(done) for _ in texts] for texts in n_best]


def _with_protected(fragment: Fragment, text: str, weights: np.ndarray | None) -> str:
    if weights is None:
        return text
    return " ".join(
        word.text for word in restored(fragment.words, aligned(text.split(), weights), weights)
    )
