"""Translation from the last word to the first: data.task = right_to_left."""

from t2t_flax.data.sources import DerivedSource, Row, Source, sha256_of
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS
from t2t_flax.tasks.translation import Translation

_IN_ORDER = (
    "filters.copies",
    "filters.scorer",
    "constraints.lines",
    "constraints.glossary",
    "constraints.avoid",
)
"""Keys whose extensions read targets in the order of their words."""


def reverse_words(text: str) -> str:
    """Return the words of a line in reverse order."""
    return " ".join(reversed(text.split()))


class ReversedTargets(DerivedSource):
    """A source with the words of its targets in reverse order."""

    def read(self):
        return map(self._reversed, self.source.read())

    def _reversed(self, row: Row) -> Row:
        return row if isinstance(row, str) else (row[0], *map(reverse_words, row[1:]))

    def fingerprint(self):
        return sha256_of(self.source.fingerprint(), "right to left")


class RightToLeft(Translation):
    """Translation whose model writes the words of a target in reverse.

    Users see them in order.
    """

    supports_prefixes = False

    def validate_config(self) -> None:
        """Raise UserError as `Translation` does, and for keys that need words in order."""
        super().validate_config()
        if self.config.data.on_too_long == "truncate":
            raise UserError(
                "config.data.on_too_long = 'truncate' would leave the first words of a source and"
                " the last ones of its target: use 'drop' with config.data.task = right_to_left."
            )
        for name in _IN_ORDER:
            if name.partition(".")[0] in GROUPS and (value := self.config.value(name)):
                raise UserError(
                    f"config.{name} = {value!r} is for targets in the order of their words: use"
                    " config.data.task = translation, not right_to_left."
                )

    def open_source(self, spec: str, *, key: str) -> Source:
        """Return the pairs, with reversed targets."""
        return ReversedTargets(super().open_source(spec, key=key))

    def preprocess_target(self, source: str, text: str) -> str:
        """Return the words in the order of the model."""
        return reverse_words(text)

    def postprocess(self, source: str, output: str) -> str:
        """Return the words in the order of the text."""
        return reverse_words(output)
