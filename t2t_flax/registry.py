"""What an extension adds to the core by name: commands, groups of config keys, rows of tables.

Rows name modules, which are imported when they are used, so that a run imports only the extensions that it uses.
"""

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line. module: its function `run(argv)` returns the exit code. hidden: not in the usage,
    because another command starts it.
    """

    module: str
    summary: str
    hidden: bool = False


class Table(Mapping[str, str]):
    """Rows of name -> module of one kind, such as decoders. The choices of a config key are the names in its table."""

    def __init__(self, kind: str, rows: Mapping[str, str]):
        self.kind = kind
        self._rows = dict(rows)

    def add(self, name: str, module: str) -> None:
        """Adds a row. Raises ValueError for a name that another module has."""
        if self._rows.setdefault(name, module) != module:
            raise ValueError(f"two {self.kind} are called {name!r}: {self._rows[name]} and {module}")

    def load(self, name: str) -> Any:
        """The module of a row."""
        return importlib.import_module(self._rows[name])

    def __getitem__(self, name: str) -> str:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


COMMANDS = {
    "train": Command("t2t_flax.cli.train", "train a config, or resume the run in a workdir; ends with an evaluation record"),
    "evaluate": Command("t2t_flax.cli.evaluate", "decode and score a split with a trained run; writes a record"),
    "translate": Command("t2t_flax.cli.translate", "translate lines of text with a trained run"),
    "prepare": Command("t2t_flax.cli.prepare", "train the tokenizer and tokenise the data of a config before training"),
    "score": Command("t2t_flax.cli.score", "log-probability of given pairs"),
    "attend": Command("t2t_flax.cli.attend", "attention weights of every layer and head for a pair, as arrays and a picture"),
    "average": Command("t2t_flax.cli.average", "write the mean of checkpoints as a workdir of its own"),
    "explain": Command(
        "t2t_flax.cli.explain", "parameter counts, FLOPs and schedule of a config; diff against a preset; list all keys"
    ),
}  # fmt: skip
DECODERS = Table("decoders", {"jax": "t2t_flax.evaluation.jax_engine"})
"""Choices of decode.engine; a module has what `evaluation.jax_engine` has."""
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


def load_extensions() -> None:
    """Imports the extensions, each of which registers what it adds."""
    importlib.import_module("t2t_flax.extensions")


def group_class(name: str) -> type:
    """The dataclass of a group of keys that an extension declares."""
    module, keys = GROUPS[name]
    return getattr(importlib.import_module(module), keys)


def absent_extension(kind: str, name: str) -> str:
    """A sentence that names the extension which brings a command or a config group, if this checkout lacks it; else ""."""
    load_extensions()
    from t2t_flax.extensions import KNOWN

    for extension, names in KNOWN.items():
        if name in names[kind]:
            return f" It belongs to the extension {extension}, which this installation does not have."
    return ""
