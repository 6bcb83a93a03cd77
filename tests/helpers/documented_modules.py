"""The modules of docs/extending.md, imported as a user would."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

from t2t_flax import registry
from t2t_flax.config import schema
from t2t_flax.extensions.augmentation import TEXT_CHANGES

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
TABLES = (
    registry.COMMANDS, registry.SOURCES, registry.TASKS, registry.DECODERS, registry.GROUPS,
    registry.MIXERS, registry.SCORES, registry.FEED_FORWARDS, registry.ACTIVATIONS, registry.NORMS, registry.POSITIONS,
    registry.SCHEDULES, registry.OPTIMIZERS, registry.HOOKS, registry.DATA_HOOKS, TEXT_CHANGES,
)  # fmt: skip


def load(heading: str, monkeypatch, folder: Path) -> ModuleType:
    """Writes the module of a section to `folder` and imports it. `monkeypatch` removes it, and what it registers, at the end."""
    registry.load_extensions()
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    code = re.search(r"```python\n(# (\w+)\.py\n.*?)```", section, re.S)
    (folder / f"{code[2]}.py").write_text(code[1])
    monkeypatch.syspath_prepend(str(folder))
    for table in TABLES:
        for name in list(table):
            monkeypatch.setitem(table, name, table[name])
    before = [set(table) for table in TABLES]
    monkeypatch.delitem(sys.modules, code[2], raising=False)
    module = importlib.import_module(code[2])
    for table, names in zip(TABLES, before, strict=True):
        for name in set(table) - names:
            row = table.pop(name)
            monkeypatch.setitem(table, name, row)
    schema.groups.cache_clear()
    schema.fields.cache_clear()
    return module


def forget() -> None:
    """Drops what was computed from the tables, after they are restored."""
    schema.groups.cache_clear()
    schema.fields.cache_clear()
