"""`--source-language` and `--target-language`."""

from typing import Any

from t2t_flax.cli.arguments import Change


class _Symbol(Change):
    """Put the symbol of a language before lines without one."""

    def __init__(self, model: Any, value: str):
        super().__init__(model, value)
        self._language = value
        self.source("")  # refuses an unknown language


class SourceLanguage(_Symbol):
    """The language of the lines. See `TrainedModel.from_language`."""

    def source(self, line: str) -> str:
        """Return the line with the symbol."""
        return self.model.from_language(line, self._language)


class TargetLanguage(_Symbol):
    """The language to write. See `TrainedModel.in_language`."""

    def source(self, line: str) -> str:
        """Return the line with the symbol."""
        return self.model.in_language(line, self._language)
