"""What an extension adds to the core by name: commands, groups of config keys, rows of tables.

Rows name modules, which are imported when they are used, so that a run imports only the extensions that it uses.
"""

import dataclasses
import fnmatch
import importlib
from typing import Any


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line. module: its function `run(argv)` returns the exit code. hidden: not in the usage,
    because another command starts it.
    """

    module: str
    summary: str
    hidden: bool = False


@dataclasses.dataclass(frozen=True)
class SourceForm:
    """A way to name a corpus in data.train, data.valid and data.test. shown: as messages show it. module: has `open_spec` and
    `files_of`, see `t2t_flax.data.sources.text`. A spec has this form if it begins with `prefix:`, or names one file that ends
    in one of `suffixes`, before that of a compression.
    """

    shown: str
    module: str
    prefix: str = ""
    suffixes: tuple[str, ...] = ()


class Table(dict[str, str]):
    """Rows of name -> module of one kind, such as decoders. The choices of a config key are the names in its table."""

    def add(self, name: str, module: str) -> None:
        """Adds a row. Raises ValueError for a name that another module has."""
        if self.setdefault(name, module) != module:
            raise ValueError(f"two rows are called {name!r}: {self[name]} and {module}")

    def load(self, name: str) -> Any:
        """The module of a row."""
        return importlib.import_module(self[name])


COMMANDS = {
    "train": Command("t2t_flax.cli.train", "train a config, or resume the run in a workdir; ends with an evaluation record"),
    "evaluate": Command("t2t_flax.cli.evaluate", "decode and score a split with a trained run; writes a record"),
    "translate": Command("t2t_flax.cli.translate", "translate lines of text with a trained run"),
    "prepare": Command("t2t_flax.cli.prepare", "train the tokenizer and tokenise the data of a config before training"),
    "score": Command("t2t_flax.cli.score", "log-probability of given pairs"),
    "attend": Command("t2t_flax.cli.attend", "attention weights of every layer and head for a pair, as arrays and a picture"),
    "average": Command("t2t_flax.cli.average", "write the mean of checkpoints as a workdir of its own"),
    "explain": Command(
        "t2t_flax.cli.explain", "parameter counts and schedule of a config; diff against a preset; list all keys"
    ),
}  # fmt: skip
DECODERS = Table({"jax": "t2t_flax.evaluation.jax_engine"})
"""Choices of decode.engine; a module has what `evaluation.jax_engine` has."""
SOURCES = {
    "toy": SourceForm(
        "'toy:SPLIT' or 'toy:SPLIT:COUNT' (the built-in corpus)", "t2t_flax.data.sources.toy", prefix="toy"
    ),
    "tfds": SourceForm("'tfds:NAME:SPLIT'", "t2t_flax.data.sources.tfds", prefix="tfds"),
    "tsv": SourceForm(
        "'FILE.tsv', 'FILE.tsv.gz' ... (source TAB target)", "t2t_flax.data.sources.tsv", suffixes=(".tsv",)
    ),
}
"""Forms of data.train, data.valid and data.test, beside that of two or more text files."""
TASKS = Table({"translation": "t2t_flax.tasks.translation.task"})
"""Choices of data.task; a module has the class `TASK`, a `tasks.base.Task`."""
PRESET_MODULES: list[str] = []
"""Modules with further presets, a dict `PRESETS` of `config.presets.Preset` by name."""
ATTENTION_KERNELS = Table({"einsum": "", "auto": ""})
"""Choices of model.attention_kernel: plain products, the kernel of the platform, and kernels; a module has PLATFORM ("gpu" or
"tpu"), `takes(q, k, v, mask)` and `attend(q, k, v, mask, scaled=...)`.
"""
WATCHERS = Table()
"""What watches over each process of a run; a module has `watcher`, see `distributed.supervisor.Watcher`."""
EXPLAINED = Table()
"""Sections that extensions add to `explain`; a module has `lines(config, state, vocabulary sizes)`: a heading, then its lines."""
HOOKS: dict[str, tuple[str, str]] = {}
"""Hooks of a run: name -> (module, the key that turns it on), see `add_hook`."""
GROUPS: dict[str, tuple[str, str]] = {}
"""Groups of config keys that extensions declare: name -> (module, class)."""


def add_command(name: str, module: str, summary: str, *, hidden: bool = False) -> None:
    """Adds a command of an extension. Raises ValueError for a name that is taken."""
    if COMMANDS.setdefault(name, Command(module, summary, hidden)).module != module:
        raise ValueError(f"two commands are called {name!r}: {COMMANDS[name].module} and {module}")


def add_group(name: str, module: str, keys: str) -> None:
    """Adds a group of config keys, `config.NAME.KEY`: the frozen dataclass `keys` of `module`, whose fields are made by
    `t2t_flax.config.keys.key`. A method `check(self, config)`, if it has one, raises UserError for an impossible combination.
    Raises ValueError for a name that is taken.
    """
    if GROUPS.setdefault(name, (module, keys)) != (module, keys):
        raise ValueError(f"two extensions declare the config group {name!r}: {GROUPS[name][0]} and {module}")


def add_hook(name: str, module: str, *, when: str) -> None:
    """Adds a hook of a run, see `training.hooks.Hook`. The module's `hook(config, workdir, group)` is called, and the module
    imported, where the key `when`, such as "trackers.names", is truthy: of a tuple, any of its items. Raises ValueError for a
    name that is taken.
    """
    if HOOKS.setdefault(name, (module, when)) != (module, when):
        raise ValueError(f"two hooks are called {name!r}: {HOOKS[name][0]} and {module}")


def add_source(name: str, form: SourceForm) -> None:
    """Adds a form of data.train. Raises ValueError for a name that is taken."""
    if SOURCES.setdefault(name, form) != form:
        raise ValueError(f"two sources are called {name!r}: {SOURCES[name].module} and {form.module}")


def load_extensions() -> None:
    """Imports the extensions, each of which registers what it adds."""
    importlib.import_module("t2t_flax.extensions")


def group_class(name: str) -> type:
    """The dataclass of a group of keys that an extension declares."""
    module, keys = GROUPS[name]
    return getattr(importlib.import_module(module), keys)


def absent_extension(kind: str, name: str) -> str:
    """A sentence that names the extension which adds `name`, if this checkout lacks it; else "". kind: as in `KNOWN`."""
    load_extensions()
    from t2t_flax.extensions import EXTENSIONS, KNOWN

    for extension, names in KNOWN.items():
        if extension not in EXTENSIONS and any(fnmatch.fnmatch(name, row) for row in names.get(kind, ())):
            return f" It belongs to the extension {extension}, which this installation does not have."
    return ""
