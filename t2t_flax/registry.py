"""Tables of components by name; extensions add rows.

Most tables are the choices of a config key. A row names a module, which is imported only when it is
used. A run therefore imports only the extensions that it needs, and resolving a config does not
import JAX.
"""

import dataclasses
import importlib
import types
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from t2t_flax.errors import UserError

Row = TypeVar("Row")


class Table(dict[str, Row]):
    """Rows of one kind by name, such as decoders.

    A row is `module`, `module:object`, or a record with a field `module`. The names in a table are
    the choices of its config key.

    Attributes:
        ignores: config keys without effect, by name of the chosen row.
    """

    def __init__(self, rows: Mapping[str, Row] | None = None):
        super().__init__(rows or {})
        self.ignores: dict[str, tuple[str, ...]] = {}

    def add(self, name: str, row: Row, *, ignores: tuple[str, ...] = ()) -> None:
        """Add a row.

        Raises ValueError if another row has this name, TypeError for a function.
        """
        if isinstance(row, types.FunctionType):
            place = f"{row.__module__}:{row.__name__}"
            raise TypeError(f"the row {name!r} is a function: give its place as text, {place!r}")
        if self.setdefault(name, row) != row:
            raise ValueError(
                f"two rows are called {name!r}: {self[name]} and {row}. A config file is executed"
                " under another name than an imported module: keep rows in a file of their own."
            )
        if ignores:
            self.ignores[name] = ignores

    def load(self, name: str) -> Any:
        """Import the module of a row, and return the module or its object.

        Raises ValueError for an unknown name, UserError for a row without its object.
        """
        load_extensions()
        if name not in self:
            raise ValueError(f"{name!r} is none of {', '.join(self)}")
        module, _, attribute = getattr(self[name], "module", str(self[name])).partition(":")
        loaded = importlib.import_module(module)
        if attribute and not hasattr(loaded, attribute):
            raise UserError(
                f"the row {name!r} is {module}:{attribute}, but {module} lacks {attribute}"
            )
        return getattr(loaded, attribute) if attribute else loaded


@dataclasses.dataclass(frozen=True)
class Command:
    """Command of the command line.

    Attributes:
        module: module with the function `run(argv)`, which returns the exit code.
        summary: line for help texts.
    """

    module: str
    summary: str


COMMANDS = Table({
    "train": Command(
        "t2t_flax.cli.train",
        "train a config, or resume the run in a workdir; ends with an evaluation record",
    ),
    "evaluate": Command(
        "t2t_flax.cli.evaluate",
        "decode and score a split with a trained run; writes a record",
    ),
    "translate": Command(
        "t2t_flax.cli.translate",
        "translate lines of text with a trained run",
    ),
    "prepare": Command(
        "t2t_flax.cli.prepare",
        "train the tokenizer and tokenise the data of a config before training",
    ),
    "explain": Command(
        "t2t_flax.cli.explain",
        "parameter counts and schedule of a config; diff against a preset; list all keys",
    ),
})  # fmt: skip


LINES, OUTPUTS = "source lines", "outputs"
REPEATED_WORKDIR = "repeated --workdir"
"""Name in FLAGS of the second and later --workdir; its row sets a key to their list."""


@dataclasses.dataclass(frozen=True)
class Flag:
    """Flag that an extension adds.

    Attributes:
        commands: command with this flag. LINES = every command that reads source lines, OUTPUTS =
            every command that also prints translations.
        metavar: name of the value in help texts; "" = no value.
        key: dotted name of the config key that the flag sets.
        module: without `key`: `module:object` of a class as `cli.arguments.Change`.
    """

    commands: str
    summary: str
    metavar: str = ""
    key: str = ""
    module: str = ""


FLAGS: Table[Flag] = Table()
"""Flags that extensions add to commands of the core or of other extensions."""


class Group:
    """Config keys `config.NAME.KEY` of an extension, and their effects on a run.

    Subclasses are frozen dataclasses whose fields `config.keys.key` makes. Methods look at the keys
    and import modules only where they are needed.
    """

    def check(self, config: Any) -> None:
        """Raise UserError for an impossible combination of keys."""

    def check_change(self, stored: Any, given: Any, step: int) -> None:
        """Raise UserError for changed keys that a run cannot take over after update `step`."""

    def check_installed(self) -> None:
        """Raise UserError, before a training begins, if a package is missing."""

    @staticmethod
    def presets() -> dict[str, Any]:
        """Return `config.presets.Preset` objects by name."""
        return {}

    @staticmethod
    def metrics() -> Sequence[Any]:
        """Return `tasks.Metric` objects for configs that set a key of the group.

        `Metric.applies` says which.
        """
        return ()

    def data_hook(self, config: Any) -> Any:
        """Return a `data.hooks.DataHook`, which changes the data of a run, or None."""
        return None

    def parametrization(self, config: Any) -> Any:
        """Return the `training.parametrization.Parametrization` of a run, or None; one a config."""
        return None

    def training_hooks(self, setup: Any, progress: Any, processes: Any) -> Sequence[Any]:
        """Return the `training.hooks.Hook` objects of a run that is restored and compiled.

        It may compile programs, or raise UserError.
        """
        return ()

    def step_change(self, config: Any) -> Any:
        """Return a `decoding.batches.StepChange`, which changes a step of decoding, or None."""
        return None

    def ensemble(self, loaded: Any, choice: Any, overrides: Any, processes: Any) -> Any:
        """Return the `evaluation.restore.TrainedModel` that decodes in place of a loaded one."""
        return loaded


GROUPS: Table[type[Group]] = Table()
"""Groups of config keys that extensions declare."""


@dataclasses.dataclass(frozen=True)
class SourceForm:
    """Form in which data.train, data.valid and data.test name a corpus.

    Attributes:
        shown: text for messages.
        module: module with `open_spec`, see `t2t_flax.data.sources.text`. An optional function
            `writes(spec, root)` returns whether opening the source writes files to data.root.
        prefix: a spec that begins with `prefix:` has this form.
        suffixes: endings of a file in this form. The ending of a compression and columns after a
            colon may follow. A list of several files needs neither prefix nor suffix.
    """

    shown: str
    module: str
    prefix: str = ""
    suffixes: tuple[str, ...] = ()


SOURCES = Table(
    {
        "toy": SourceForm(
            "'toy:SPLIT' or 'toy:SPLIT:COUNT' (the built-in corpus)",
            "t2t_flax.data.sources.toy",
            prefix="toy",
        ),
        "text": SourceForm(
            "'SRC,TGT' (two text files, or patterns such as train.*.en,train.*.de; plain or .gz,"
            " .bz2, .xz, .zst), 'SRC,REF1,REF2' (several references, for validation and test text)",
            "t2t_flax.data.sources.text",
        ),
    }
)
"""Forms of data.train, data.valid and data.test."""
TASKS = Table({"translation": "t2t_flax.tasks.translation:Translation"})
"""Choices of data.task: subclasses of `tasks.Task`."""
TOKENIZERS = Table(
    {name: "t2t_flax.data.tokenizers:SentencePieceTokenizer" for name in ("bpe", "unigram")}
)
"""Choices of data.tokenizer: `data.tokenizers.Tokenizer` classes with `train`."""
TOKENIZER_FILES: Table[str] = Table()
"""Tokenizer classes by the `kind` in their JSON files.

Files in other formats are SentencePiece models.
"""
MIXERS = Table({"attention": "t2t_flax.models.attention:SelfAttention"})
"""Choices of model.mixer; see `t2t_flax.models.attention`."""
SCORES = Table(
    {"scaled_dot": "t2t_flax.models.attention:scaled_dot", "dot": "t2t_flax.models.attention:dot"}
)
"""Choices of model.attention_score: functions that return a flax module.

The module maps q [..., T, N, H] and k [..., S, N, H] to float32 scores [..., N, T, S].
"""
ATTENTION_KERNELS = Table({"einsum": "", "auto": ""})
"""Choices of model.attention_kernel: einsum, automatic choice, and kernels.

A kernel's module has PLATFORM ("gpu" or "tpu"), `takes(q, k, v, mask)` and
`attend(q, k, v, mask, scaled=...)`. Its functions `unavailable()` and `slower(length)` return a
reason or "".
"""
FEED_FORWARDS = Table({"dense": "t2t_flax.models.layers:FeedForward"})
"""Choices of model.feed_forward: flax modules with the interface of `FeedForward`."""
ACTIVATIONS = Table(
    {"relu": "flax.linen:relu", "gelu": "flax.linen:gelu", "swish": "flax.linen:swish"}
)
"""Choices of model.activation: functions of an array."""
NORMS = Table({"layernorm": "t2t_flax.models.dense:LayerNorm"})
"""Choices of model.norm_type: functions (epsilon, dtype) -> norm.

The norm is a function or flax module [..., D] -> [..., D].
"""
POSITIONS = Table(
    {
        name: f"t2t_flax.models.embeddings:{name.upper()}"
        for name in ("sinusoid_interleaved", "sinusoid_halves", "learned", "none")
    }
)
"""Choices of model.position: instances of `PositionScheme`."""
OPTIMIZERS = Table({"adam": "t2t_flax.training.optimizer:adam"})
"""Choices of optimizer.name: functions config -> optax transformation.

It turns gradients into a direction. Weight decay and the learning rate follow in the same way for
all. An optimizer with its own average of the parameters returns a
`training.optimizer.AveragingDirection` and ignores optimizer.ema_decay.
"""
SCHEDULES = Table(
    {name: f"t2t_flax.training.optimizer:{name}" for name in ("noam", "inverse_sqrt", "constant")}
)
"""Choices of optimizer.schedule: config -> `training.optimizer.Schedule`."""
DECODERS = Table({"jax": "t2t_flax.decoding.translator:JaxDecoder"})
"""Choices of decode.engine: classes as `decoding.translator.Decoder`."""
SEARCHES = Table({
    "beam": "t2t_flax.decoding.beam_search:beam",
    "greedy": "t2t_flax.decoding.sampling:greedy",
    "sample": "t2t_flax.decoding.sampling:sample",
})  # fmt: skip
"""Choices of decode.strategy: functions (config, tokenizers) -> Search.

The type is `decoding.search_loop.Search`. A sentence has one hypothesis with greedy, decode.n_best
with sample, and decode.beam_size with others.
"""


def load_extensions() -> None:
    """Import the extensions, which add their rows."""
    importlib.import_module("t2t_flax.extensions")
