"""`--source-language` and `--target-language`."""

from typing import Any

from t2t_flax.cli.arguments import Change


class SourceLanguage(Change):
    """Put the symbol of their own language before lines without one.

    See `TrainedModel.from_language`.
    """

    def __init__(self, model: Any, value: str):
        super().__init__(model, value)
        self._language = value
        self.source("")

    def source(self, line: str) -> str:
        """Return the line with the symbol."""
        return self.model.from_language(line, self._language)


class TargetLanguage(Change):
    """Put the symbol of a language before lines without one.

    See `TrainedModel.in_language`.
    """

    def __init__(self, model: Any, value: str):
        super().__init__(model, value)
        self._language = value
        self.source("")

    def source(self, line: str) -> str:
        """Return the line with the symbol."""
        return self.model.in_language(line, self._language)
