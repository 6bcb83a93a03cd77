"""Tables of components by name, to which extensions add rows: commands, groups of config keys, layers, sources, hooks.

Rows name modules, which are imported when they are used, so that a run imports only the extensions that it uses.
"""

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line. module: its function `run(argv)` returns the exit code."""

    module: str
    summary: str


@dataclasses.dataclass(frozen=True)
class SourceForm:
    """A way to name a corpus in data.train, data.valid and data.test. shown: as messages show it. module: has `open_spec`, as
    `t2t_flax.data.sources.text`, and perhaps `writes(spec, root)`: whether opening the source would write files to data.root. A
    spec has this form if it begins with `prefix:`, or names one file that ends in one of `suffixes`, before that of a
    compression; columns may follow after a colon. The form of several file names needs neither.
    """

    shown: str
    module: str
    prefix: str = ""
    suffixes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ModelForm:
    """A model that --workdir may name in place of a run's workdir. shown: as help texts show it. prefix: of names, with
    its colon. file: in a folder that holds such a model. module: has `folder_of(name)` and `open_model(folder)`, see
    `t2t_flax.model_forms`.
    """

    shown: str
    module: str
    prefix: str
    file: str


LINES, OUTPUTS = "source lines", "outputs"


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag that an extension adds. commands: the one that has it, or LINES = all that read source lines, OUTPUTS = those of
    them that print translations. metavar: what a value is called; "" = it takes none. key: the config key that it stands for,
    by its dotted name. module: where it stands for none, `module:object`, a class as `cli.arguments.Change`.
    """

    commands: str
    summary: str
    metavar: str = ""
    key: str = ""
    module: str = ""


@dataclasses.dataclass(frozen=True)
class MetricRow:
    """A metric. module: `module:object` of the class `tasks.Metric`. keys: config keys, one of which is set where records may
    have it.
    """

    module: str
    keys: tuple[str, ...]


Row = TypeVar("Row")


class Table(dict[str, Row]):
    """Rows of one kind by name, such as decoders: `module`, `module:object`, or a record that has a `module`. The choices of a
    config key are the names in its table.

    Attributes:
      ignores: config keys that have no effect where a row is chosen, by the row's name.
    """

    def __init__(self, rows: Mapping[str, Row] | None = None):
        super().__init__(rows or {})
        self.ignores: dict[str, tuple[str, ...]] = {}

    def add(self, name: str, row: Row, *, ignores: tuple[str, ...] = ()) -> None:
        """Adds a row. Raises ValueError for a name that another row has."""
        if self.setdefault(name, row) != row:
            raise ValueError(f"two rows are called {name!r}: {self[name]} and {row}")
        if ignores:
            self.ignores[name] = ignores

    def load(self, name: str) -> Any:
        """The module of a row, or its object. Raises ValueError for an unknown name."""
        load_extensions()
        if name not in self:
            raise ValueError(f"{name!r} is none of {', '.join(self)}")
        module, _, attribute = getattr(self[name], "module", str(self[name])).partition(":")
        return getattr(importlib.import_module(module), attribute) if attribute else importlib.import_module(module)

    def load_all(self) -> Iterator[Any]:
        """The modules or objects of all rows."""
        load_extensions()
        return map(self.load, self)


class Features(dict[str, tuple[str, ...]]):
    """Modules that are active, and imported, only in runs whose config sets one of their keys."""

    def add(self, module: str, *when: str) -> None:
        """when: keys by their dotted names; one is set if it is truthy or, of a tuple, any of its items."""
        self[module] = when

    def of(self, config: Any) -> Iterator[Any]:
        """The modules for a run with this config."""
        load_extensions()
        for module, when in self.items():
            values = map(config.value, when)
            if any(any(value) if isinstance(value, tuple) else value for value in values):
                yield importlib.import_module(module)


COMMANDS = Table({
    "train": Command("t2t_flax.cli.train", "train a config, or resume the run in a workdir; ends with an evaluation record"),
    "evaluate": Command("t2t_flax.cli.evaluate", "decode and score a split with a trained run; writes a record"),
    "translate": Command("t2t_flax.cli.translate", "translate lines of text with a trained run"),
    "prepare": Command("t2t_flax.cli.prepare", "train the tokenizer and tokenise the data of a config before training"),
    "explain": Command(
        "t2t_flax.cli.explain", "parameter counts and schedule of a config; diff against a preset; list all keys"
    ),
})  # fmt: skip
DECODERS = Table({"jax": "t2t_flax.decoding.translator:JaxDecoder"})
"""Choices of decode.engine: classes as `decoding.translator.Decoder`."""
SEARCHES = Table({
    "beam": "t2t_flax.decoding.beam_search:beam",
    "greedy": "t2t_flax.decoding.sampling:greedy",
    "sample": "t2t_flax.decoding.sampling:sample",
})  # fmt: skip
"""Choices of decode.strategy: functions (config, tokenizers) -> `decoding.search_loop.Search`. greedy has one hypothesis for each
sentence, sample decode.n_best, others decode.beam_size.
"""
STEPS = Features()
"""Modules with `step(inner, config, tokenizers)`: the step of decoding in place of `inner`, both with the interface of
`decoding.translator.DecodeStep`, and with `prepare(config, tokenizers, lines, first_line)`: source lines as the model reads
them, and arrays [lines, ...] by name for `Sentences.more`.
"""
SOURCES = Table(
    {
        "toy": SourceForm(
            "'toy:SPLIT' or 'toy:SPLIT:COUNT' (the built-in corpus)", "t2t_flax.data.sources.toy", prefix="toy"
        ),
        "text": SourceForm(
            "'SRC,TGT' (two text files, or patterns such as train.*.en,train.*.de; plain or .gz, .bz2, .xz, .zst), "
            "'SRC,REF1,REF2' (several references, for validation and test text)",
            "t2t_flax.data.sources.text",
        ),
    }
)
"""Forms of data.train, data.valid and data.test."""
TOKENIZERS = Table({name: "t2t_flax.data.tokenizers:SentencePieceTokenizer" for name in ("bpe", "unigram")})
"""Choices of data.tokenizer: subclasses of `data.tokenizers.Tokenizer` with `train`."""
TOKENIZER_FILES: Table[str] = Table()
"""Classes of tokenizers by the `kind` that their file, in JSON, names. Others are SentencePiece models."""
MODEL_FORMS: Table[ModelForm] = Table()
"""What --workdir may name beside the workdir of a run."""
ENSEMBLES = Features()
"""At most one module, with one key, which further --workdir flags set: models that decode together with a run, separated by
commas. `extend(loaded, choice, overrides, group)` returns one `TrainedModel` for all, see `evaluation.restore.load`.
"""
TASKS = Table({"translation": "t2t_flax.tasks.translation:Translation"})
"""Choices of data.task: subclasses of `tasks.Task`."""
METRICS: Table[MetricRow] = Table()
"""Metrics that extensions add to those of a task."""
PRESET_MODULES: list[str] = []
"""Modules with further presets, a dict `PRESETS` of `config.presets.Preset` by name."""
ATTENTION_KERNELS = Table({"einsum": "", "auto": ""})
"""Choices of model.attention_kernel: plain products, the kernel of the platform, and kernels. A module has PLATFORM ("gpu" or
"tpu"), `unavailable()` and `slower(length)`, which give a reason or "", `takes(q, k, v, mask)` and
`attend(q, k, v, mask, scaled=...)`.
"""
PARAMETERS = Features()
"""Modules with `parameters(config) -> training.parameters.Parameters` and `explain(config)`, lines for `explain`. A
config may use one of them.
"""
MIXERS = Table({"attention": "t2t_flax.models.attention:SelfAttention"})
"""Choices of model.mixer; see `t2t_flax.models.attention`."""
SCORES = Table({"scaled_dot": "t2t_flax.models.attention:scaled_dot", "dot": "t2t_flax.models.attention:dot"})
"""Choices of model.attention_score: functions that return a flax module, (q [..., T, N, H], k [..., S, N, H]) -> float32
[..., N, T, S].
"""
FEED_FORWARDS = Table({"dense": "t2t_flax.models.layers:FeedForward"})
"""Choices of model.feed_forward: flax modules with the interface of `FeedForward`."""
ACTIVATIONS = Table({"relu": "flax.linen:relu", "gelu": "flax.linen:gelu", "swish": "flax.linen:swish"})
"""Choices of model.activation: functions of an array."""
NORMS = Table({"layernorm": "t2t_flax.models.dense:LayerNorm"})
"""Choices of model.norm_type: functions (epsilon, dtype) -> function or flax module, [..., D] -> [..., D]."""
POSITIONS = Table(
    {
        name: f"t2t_flax.models.embeddings:{name.upper()}"
        for name in ("sinusoid_interleaved", "sinusoid_halves", "learned", "none")
    }
)
"""Choices of model.position: objects of the class `PositionScheme`."""
SCHEDULES = Table({name: f"t2t_flax.training.optimizer:{name}" for name in ("noam", "inverse_sqrt", "constant")})
"""Choices of optimizer.schedule: functions config -> `t2t_flax.training.optimizer.Schedule`."""
OPTIMIZERS = Table({"adam": "t2t_flax.training.optimizer:adam"})
"""Choices of optimizer.name: functions config -> optax transformation of gradients to a direction, before weight decay and the
learning rate, which all share. One that evaluates an average of its own ignores optimizer.ema_decay, and returns a
`training.optimizer.AveragingDirection`.
"""
DATA_HOOKS = Features()
"""Modules with `hook(config) -> data.hooks.DataHook`."""
FLAGS: Table[Flag] = Table()
"""Flags that extensions add to commands of the core and to each other's."""
HOOKS = Features()
"""Modules with `hooks(setup, progress, group)`, a list of `training.hooks.Hook`, and perhaps `check_installed(config)`."""
OBJECT_STORAGE: Table[str] = Table()
"""At most one row: the module for paths in object stores, with a function for each of `filesystem.by_storage`."""
GROUPS: Table[type] = Table()
"""Groups of config keys that extensions declare, `config.NAME.KEY`: frozen dataclasses whose fields are made by
`config.keys.key`. A method `check(self, config)`, if there is one, raises UserError for an impossible combination, and
`check_change(self, stored, given, step)` for a change of its mutable keys that a run cannot take over after update `step`.
"""


def load_extensions() -> None:
    """Imports the extensions, each of which registers what it adds."""
    importlib.import_module("t2t_flax.extensions")
