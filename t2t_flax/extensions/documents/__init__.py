"""Documents: sentences are translated with those before them; paragraphs are translated sentence by sentence."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.data_keys import VALID_PREFIX, Data
from t2t_flax.config.keys import TRANSLATIONS, key
from t2t_flax.config.schema import fields
from t2t_flax.data.hooks import draws_pairs
from t2t_flax.errors import UserError
from t2t_flax.extensions.shared.named_entries import named_entries
from t2t_flax.registry import ANALYSES, DATA_HOOKS, FLAGS, GROUPS, OUTPUTS, Flag

_READ_OTHERWISE = {
    "constraints.lines": "lines hold more than a sentence",
    "constraints.glossary": "it would ask for the terms of the sentences before a sentence, too",
    "alignments.guided": "its word numbers are those of single sentences",
    "rerank.right_to_left": "targets are in reverse order",
}
"""Keys with which windows cannot be put together, and why."""


@dataclass(frozen=True)
class Documents:
    context: int = key(
        0,
        "sentences of the same document before each source sentence, as one source (Tiedemann and Scherrer 2017); 0 = none",
        low=0,
        high=100,
        changes=TRANSLATIONS,
    )
    target_context: int = key(
        0,
        "of the sentences of documents.context, the last ones whose translations stand before the target, too; of such an "
        "output the last sentence is the translation",
        low=0,
        high=100,
        changes=TRANSLATIONS,
    )
    separator: str = key("<sep>", "symbol of the vocabulary after each sentence of the context", changes=TRANSLATIONS)
    ids: str = key(
        "",
        "files of document ids, one a line for each pair, as 'train=FILE, valid=FILE, test=FILE', and of sources with names as "
        "'train.NAME=FILE'; sources without one are documents divided by blank lines",
        changes=TRANSLATIONS,
    )
    input_ids: str = key(
        "",
        "file of document ids, one for each line that translate and translate_file read; empty = blank lines divide documents",
        mutable=True,
        changes=TRANSLATIONS,
        file=True,
    )

    @classmethod
    def of(cls, config: Config) -> "Documents":
        """The group of a config."""
        return config.group("documents")

    def files(self, data: Data) -> dict[str, str]:
        """The files of `ids` by source: `train`, or `train.NAME` of one with a name. Raises UserError for other names."""
        names = [
            *(_name("train", name) for name in data.train_sources),
            *(_name("valid", name.removeprefix(VALID_PREFIX)) for name in data.valid_sets),
            *(_name("test", name) for name in data.test_sets),
        ]
        return named_entries(
            f"config.documents.ids = {self.ids!r}", self.ids, names, "data.train, .valid and .test have"
        )

    def file_of(self, data: Data, split: str, name: str) -> str:
        """The file of the ids of a source of a split; "" = blank lines divide its documents."""
        return self.files(data).get(_name(split, name.removeprefix(VALID_PREFIX)), "")

    def check(self, config: Config) -> None:
        """Raises UserError for values and keys that do not go together."""
        self.files(config.data)
        shown = f"config.documents.context = {self.context}"
        if self.target_context > self.context:
            raise UserError(f"config.documents.target_context = {self.target_context} is more than {shown}.")
        if not self.context:
            if self.input_ids:
                raise UserError(
                    f"config.documents.input_ids = {self.input_ids} needs config.documents.context above 0."
                )
            return
        if not self.separator or any(map(str.isspace, self.separator)):
            raise UserError(f"config.documents.separator = {self.separator!r}: expected a symbol without spaces.")
        data = config.data
        if data.task != "translation" or data.tokenizer not in ("bpe", "unigram"):
            raise UserError(
                f"{shown} is for config.data.task = translation and config.data.tokenizer = bpe or unigram, not for "
                f"{data.task} and {data.tokenizer}."
            )
        if config.decode.engine != "jax":
            raise UserError(f"{shown} needs config.decode.engine = jax, not {config.decode.engine}.")
        if draws_pairs(config):
            raise UserError(
                f"{shown}: texts cannot be changed or segmented anew in each pass. Leave out the keys that do it, such as those "
                "of the groups noise and subwords."
            )
        filters = [
            name
            for name, item in fields().items()
            if name.startswith("filters.") and config.value(name) != item.default
        ]
        if filters:
            raise UserError(
                f"{shown} cannot be used with config.{filters[0]} = {config.value(filters[0])}: filters would judge a sentence "
                "together with those before it. Filter the text first."
            )
        for name, why in _READ_OTHERWISE.items():
            if name in fields() and config.value(name):
                raise UserError(f"{shown} cannot be used with config.{name} = {config.value(name)}: {why}.")


def _name(split: str, name: str) -> str:
    return split if name == split else f"{split}.{name}"


GROUPS.add("documents", Documents)
DATA_HOOKS.add("t2t_flax.extensions.documents.hook", "documents.context")
ANALYSES.add("sentences", "t2t_flax.extensions.documents.sentences:sentences_of")
FLAGS.add(
    "--split-sentences",
    Flag(
        OUTPUTS,
        "translate each sentence of a line on its own, and join them with what stood between them",
        module="t2t_flax.extensions.documents.model:SplitSentences",
    ),
)
