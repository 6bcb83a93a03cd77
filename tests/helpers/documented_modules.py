"""The modules of README.md and docs/extending.md, imported as a user would."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

from t2t_flax import registry
from t2t_flax.config import schema

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
EXAMPLES = Path(__file__).parents[1] / "examples"
"""Those that the page names."""


def tables() -> list[registry.Table]:
    """Those of the core, and those that extensions have beside them."""
    registry.load_extensions()
    modules = [
        registry,
        *(
            module
            for name, module in sys.modules.items()
            if name.startswith("t2t_flax.extensions.")
        ),
    ]
    found = [table for module in modules for table in vars(module).values()]
    return list({id(table): table for table in found if isinstance(table, registry.Table)}.values())


def load(heading: str, monkeypatch, folder: Path, page: Path = PAGE) -> ModuleType:
    """Writes the module of a section to `folder` and imports it, as `use`."""
    section = page.read_text().split(f"# {heading}\n")[1].split("\n## ")[0]
    code = re.search(r"```python\n(# (\w+)\.py\n.*?)```", section, re.S)
    (folder / f"{code[2]}.py").write_text(code[1])
    return use(folder / f"{code[2]}.py", monkeypatch)


def use(file: Path, monkeypatch) -> ModuleType:
    """Imports a module from its folder.

    `monkeypatch` removes it, and what it registers, at the end.
    """
    monkeypatch.syspath_prepend(str(file.parent))
    before = [(table, set(table)) for table in tables()]
    for table, names in before:
        for name in names:
            monkeypatch.setitem(table, name, table[name])
    monkeypatch.delitem(sys.modules, file.stem, raising=False)
    module = importlib.import_module(file.stem)
    for table, names in before:
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
