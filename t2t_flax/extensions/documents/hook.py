"""Windows in the data of a run, and in the lines that it translates."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from t2t_flax.cli.lines import iterate_lines
from t2t_flax.config import Config
from t2t_flax.config.data_keys import UNK
from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.hooks import DataHook, control_symbols
from t2t_flax.data.sources import Context
from t2t_flax.data.sources.files import existing_file
from t2t_flax.data.tokenizers import Tokenizer, TokenizerPair, split_symbols
from t2t_flax.decoding.translator import Translation
from t2t_flax.errors import UserError
from t2t_flax.extensions.documents import Documents
from t2t_flax.extensions.documents.windows import WindowForm, Windows, documents_of
from t2t_flax.tasks.translation import recipe, sacrebleu_statistics

SHORTENED = "lost the oldest sentences before them, with which they are longer than config.decode.max_source_length"
OTHER_COUNT = (
    "translated with another number of separators than there are in the window, of which what follows the last is taken"
)


def separator_in(tokenizer: Tokenizer, symbol: str) -> int:
    """The id of the separator; -1 if it is not a piece of the vocabulary."""
    ids = tokenizer.encode_text(f"a{symbol} a")
    pieces = zip(ids, tokenizer.pieces(ids), strict=True)
    return next((token for token, piece in pieces if piece == symbol and token != UNK), -1)


@dataclasses.dataclass(frozen=True)
class ShortenWindows:
    """Drops the oldest sentences of pairs of windows that are too long; `DataHook.shorten`."""

    form: WindowForm

    def __call__(self, tokenizers: TokenizerPair, ids: list[list[int]], most: int) -> bool:
        if max(map(len, ids)) <= most:
            return False
        separators = [separator_in(side, self.form.separator) for side in (tokenizers.source, tokenizers.target)]
        symbols = set(tokenizers.source.control_symbols.values())
        heads = [next((at for at, token in enumerate(ids[0]) if token not in symbols), 0), 0]
        context = ids[0].count(separators[0])
        left = context - self.form.dropped(ids, separators, heads, most)
        if left < context:
            counts = left, self.form.of_target(left)
            for side, separator, head, count in zip(ids, separators, heads, counts, strict=True):
                del side[head : self.form.begin(side, separator, head, count)]
        return left < context


class DocumentsHook(DataHook):
    def __init__(self, config: Config):
        self._config, self._keys = config, Documents.of(config)
        self._form = WindowForm(self._keys.context, self._keys.target_context, self._keys.separator)

    def transform(self, split, name, source):
        return Windows(source, self._form, self._ids(split, name))

    def _ids(self, split: str, name: str) -> epath.Path | None:
        data = self._config.data
        if not (file := self._keys.file_of(data, split, name)):
            return None
        languages = data.source_language, data.target_language
        return existing_file(file, Context(data.root, languages, f"config.documents.ids = {self._keys.ids!r}"))

    def separators(self):
        return [self._form.separator]

    def check_tokenizers(self, tokenizers):
        sides = {"source": tokenizers.source} | ({"target": tokenizers.target} if self._form.target_context else {})
        for side, tokenizer in sides.items():
            if separator_in(tokenizer, self._form.separator) < 0:
                raise UserError(
                    f"config.documents.separator = {self._form.separator} is not a piece of the {side} tokenizer. A run that is "
                    "trained with config.documents.context trains one that has it; one in config.data.tokenizer_model must be a "
                    f"SentencePiece model trained with --user_defined_symbols={self._form.separator}."
                )

    def shorten(self):
        return ShortenWindows(self._form)

    def lines(self, lines):
        # Opened at once, so that an absent file is an error before a model is loaded.
        return self._windows(lines, iterate_lines(self._keys.input_ids) if self._keys.input_ids else None)

    def _windows(self, lines: Iterator[str], ids: Iterator[str] | None) -> Iterator[str]:
        count, rows = 0, ((line,) for line in lines)
        for window, *_ in self._form.windows(rows, ids and self._each_id(ids), control_symbols(self._config)):
            count += 1
            yield window
        if ids and (more := sum(1 for _ in ids)):
            raise self._unequal(f"{count + more} lines, the input {count}")

    def _each_id(self, ids: Iterator[str]) -> Iterator[str]:
        count = 0
        for count, document in enumerate(ids, 1):  # noqa: B007
            yield document
        raise self._unequal(f"{count} lines, the input has more")

    def _unequal(self, counts: str) -> UserError:
        file = self._keys.input_ids
        return UserError(
            f"config.documents.input_ids = {file} has {counts}: expected the id of a document for each line."
        )

    def check_prefixes(self):
        if self._form.target_context:
            raise UserError(
                "a prefix would begin the translation of the first sentence of a window, not of its own "
                f"(config.documents.target_context = {self._form.target_context})."
            )

    def translate(self, translate, tokenizers, limit):
        self.check_tokenizers(tokenizers)

        def of_windows(lines: Sequence[str], prefixes: Sequence[str] | None) -> list[Translation]:
            if any(prefixes or ()):
                self.check_prefixes()
            read = [self._shortened(tokenizers.source, line, limit) for line in lines]
            return [self.own(*each) for each in zip(lines, read, translate(read, prefixes), strict=True)]

        return of_windows

    def _shortened(self, tokenizer: Tokenizer, line: str, limit: int) -> str:
        """The line without the oldest sentences of a window that is too long."""
        if self._form.separator not in line:
            return line
        symbols, text = split_symbols(line, tokenizer.control_symbols)
        separator = separator_in(tokenizer, self._form.separator)
        drop = self._form.dropped([tokenizer.encode(line)], [separator], [len(symbols)], limit)
        return " ".join([*symbols, self._form.join(self._form.split(text)[drop:])]) if drop else line

    def own(self, line: str, read: str, translation: Translation) -> Translation:
        """What translates the last sentence of a window, given the translation of what was read of it."""
        separator, notes = self._form.separator, []
        if line.count(separator) > read.count(separator):
            notes.append(SHORTENED)
        if read.strip() and translation.text.count(separator) != self._form.of_target(read.count(separator)):
            notes.append(OTHER_COUNT)
        hypotheses = tuple(
            dataclasses.replace(
                one, text=one.text.rpartition(separator)[2].strip() if separator in one.text else one.text
            )
            for one in translation.hypotheses
        )
        return dataclasses.replace(translation, hypotheses=hypotheses, notes=(*translation.notes, *notes))

    def explain(self):
        return [
            f"windows: {self._form.context} sentences before each source, {self._form.target_context} before each target, "
            f"divided by {self._form.separator}"
        ]

    def record(self, name, predictions):
        """The keys, the file of ids, and for each document its sentences and sacreBLEU."""
        data = self._config.data
        split = "valid" if name in data.valid_sets else "test" if name in data.test_sets else "train"
        ids = self._ids(split, name)
        entry: dict[str, Any] = {**dataclasses.asdict(self._form), "ids": os.fspath(ids) if ids else "blank lines"}
        entry |= {"ids_digest": file_sha256(ids)} if ids else {}
        statistics = sacrebleu_statistics(recipe("sacrebleu", self._config), predictions)
        entry["documents"] = [
            {
                "id": document,
                "sentences": len(rows),
                "sacrebleu": round(statistics.score(statistics.values[rows].sum(0)), 2),
            }
            for document, rows in documents_of(predictions.sources, ids)
        ]
        return {"documents": entry}


def hook(config: Config) -> DocumentsHook:
    return DocumentsHook(config)
