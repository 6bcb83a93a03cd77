"""Tables of components by name: commands, groups of config keys, layers, sources, hooks. Extensions add rows.

A row names a module, which is imported when it is used. So a run imports only the extensions that it uses, and a config is
resolved without JAX.
"""

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes:
        module: has the function `run(argv)`, which returns the exit code.
    """

    module: str
    summary: str


@dataclasses.dataclass(frozen=True)
class SourceForm:
    """A way to name a corpus in data.train, data.valid and data.test.

    Attributes:
        shown: text for messages.
        module: has `open_spec`, as `t2t_flax.data.sources.text`, and perhaps `writes(spec, root)`, which returns whether
            opening the source writes files to data.root.
        prefix: a spec that begins with `prefix:` has this form.
        suffixes: one file with such an ending has this form. The ending of a compression and columns after a colon may
            follow. A list of several files needs neither prefix nor suffix.
    """

    shown: str
    module: str
    prefix: str = ""
    suffixes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ModelForm:
    """A model that --workdir may name in place of a run.

    Attributes:
        shown: text for help.
        module: has `folder_of(name)` and `open_model(folder)`, see `t2t_flax.model_forms`.
        prefix: start of its names, with the colon.
        file: file that a folder with such a model holds.
    """

    shown: str
    module: str
    prefix: str
    file: str


LINES, OUTPUTS = "source lines", "outputs"


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag that an extension adds.

    Attributes:
        commands: the command that has it, LINES = every command that reads source lines, or OUTPUTS = every one that also
            prints translations.
        metavar: name of its value in help texts; "" = no value.
        key: dotted name of the config key that it sets.
        module: without a key, `module:object` of a class as `cli.arguments.Change`.
    """

    commands: str
    summary: str
    metavar: str = ""
    key: str = ""
    module: str = ""


@dataclasses.dataclass(frozen=True)
class MetricRow:
    """A metric that an extension adds.

    Attributes:
        module: `module:object` of a class as `tasks.Metric`.
        keys: config keys; records may have the metric if one of them is set.
    """

    module: str
    keys: tuple[str, ...]


Row = TypeVar("Row")


class Table(dict[str, Row]):
    """Rows of one kind by name, such as decoders: `module`, `module:object`, or a record with a `module`.

    The choices of a config key are the names in its table.

    Attributes:
        ignores: config keys without effect for a choice, by the row's name.
    """

    def __init__(self, rows: Mapping[str, Row] | None = None):
        super().__init__(rows or {})
        self.ignores: dict[str, tuple[str, ...]] = {}

    def add(self, name: str, row: Row, *, ignores: tuple[str, ...] = ()) -> None:
        """Add a row. Raises ValueError for a name that another row has."""
        if self.setdefault(name, row) != row:
            raise ValueError(f"two rows are called {name!r}: {self[name]} and {row}")
        if ignores:
            self.ignores[name] = ignores

    def load(self, name: str) -> Any:
        """Import the module of a row; return it, or its object. Raises ValueError for an unknown name."""
        load_extensions()
        if name not in self:
            raise ValueError(f"{name!r} is none of {', '.join(self)}")
        module, _, attribute = getattr(self[name], "module", str(self[name])).partition(":")
        return getattr(importlib.import_module(module), attribute) if attribute else importlib.import_module(module)

    def load_all(self) -> Iterator[Any]:
        """Return the modules or objects of all rows."""
        load_extensions()
        return map(self.load, self)


class Features(dict[str, tuple[str, ...]]):
    """Modules that are active, and imported, only in runs whose config sets one of their keys."""

    def add(self, module: str, *when: str) -> None:
        """Add a module.

        Args:
            when: dotted names of keys. A key is set if its value, or an item of a tuple, is truthy.
        """
        self[module] = when

    def of(self, config: Any) -> Iterator[Any]:
        """Import the modules for a run with this config."""
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
"""Choices of decode.strategy: functions (config, tokenizers) -> `decoding.search_loop.Search`. Hypotheses of a sentence: one with
greedy, decode.n_best with sample, decode.beam_size with others.
"""
STEPS = Features()
"""Modules with two functions. `step(inner, config, tokenizers)` wraps a step of decoding; both are a
`decoding.translator.DecodeStep`. `prepare(config, tokenizers, lines, first_line)` returns source lines as the model reads them,
and arrays [lines, ...] by name for `Sentences.more`.
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
"""Classes of tokenizers by the `kind` in their JSON files. Other files are SentencePiece models."""
MODEL_FORMS: Table[ModelForm] = Table()
"""Models that --workdir may name in place of a run."""
ENSEMBLES = Features()
"""At most one module, with one key, which further --workdir flags set: models that decode together with a run, separated by
commas. `extend(loaded, choice, overrides, group)` returns one `TrainedModel` for all, see `evaluation.restore.load`.
"""
TASKS = Table({"translation": "t2t_flax.tasks.translation:Translation"})
"""Choices of data.task: subclasses of `tasks.Task`."""
METRICS: Table[MetricRow] = Table()
"""Metrics that extensions add to the metrics of a task."""
PRESET_MODULES: list[str] = []
"""Modules with further presets, a dict `PRESETS` of `config.presets.Preset` by name."""
ATTENTION_KERNELS = Table({"einsum": "", "auto": ""})
"""Choices of model.attention_kernel: plain products, the kernel of the platform, and kernels. A module has PLATFORM ("gpu" or
"tpu"), `unavailable()` and `slower(length)`, which give a reason or "", `takes(q, k, v, mask)` and
`attend(q, k, v, mask, scaled=...)`.
"""
PARAMETERS = Features()
"""Modules with `parameters(config) -> training.parameters.Parameters` and `explain(config)`, which returns lines for
`explain`. A config may use one of them.
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
"""Choices of optimizer.name: functions config -> optax transformation of gradients to a direction. All share what follows: weight
decay and the learning rate. An optimizer that evaluates an average of its own ignores optimizer.ema_decay, and its function
returns a `training.optimizer.AveragingDirection`.
"""
DATA_HOOKS = Features()
"""Modules with `hook(config) -> data.hooks.DataHook`."""
FLAGS: Table[Flag] = Table()
"""Flags that extensions add to commands of the core and to each other's."""
HOOKS = Features()
"""Modules with `hooks(setup, progress, group)`, which returns a list of `training.hooks.Hook`, and perhaps
`check_installed(config)`.
"""
OBJECT_STORAGE: Table[str] = Table()
"""At most one row: the module for paths in object stores, with a function for each of `filesystem.by_storage`."""
GROUPS: Table[type] = Table()
"""Groups of config keys, `config.NAME.KEY`, that extensions declare: frozen dataclasses with fields made by `config.keys.key`.
They may have two methods that raise UserError: `check(self, config)` for an impossible combination, and
`check_change(self, stored, given, step)` for a change of mutable keys that a run cannot take over after update `step`.
"""


def load_extensions() -> None:
    """Import the extensions. Each registers what it adds."""
    importlib.import_module("t2t_flax.extensions")
