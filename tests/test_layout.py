"""The direction of imports."""

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "t2t_flax"
ALLOWED_IMPORTS = {
    "errors": set(),
    "registry": {"errors", "extensions"},  # loads extensions
    "version": set(),
    "files": {"errors", "registry"},
    "json_file": set(),
    "language": {"errors"},
    "locks": {"errors", "files", "json_file", "registry"},
    "config": {"errors", "json_file", "language", "registry"},
    "process_setup": {"config", "errors", "files"},
    "model_forms": {"config", "errors", "registry"},
    "data": {"config", "registry", "errors", "files", "json_file", "language", "locks"},
    "models": {"config", "errors", "registry"},
    "distributed": {"config", "errors", "files", "process_setup", "registry"},
    "training": {
        "registry",
        "config",
        "errors",
        "files",
        "json_file",
        "locks",
        "data",
        "tasks",
        "models",
        "distributed",
        "process_setup",
        "model_forms",
        "version",
    },
    "decoding": {
        "config",
        "errors",
        "files",
        "data",
        "models",
        "distributed",
        "process_setup",
        "registry",
        "version",
    },
    "evaluation": {
        "registry",
        "config",
        "errors",
        "files",
        "json_file",
        "language",
        "locks",
        "data",
        "models",
        "distributed",
        "training",
        "decoding",
        "model_forms",
        "tasks",
        "version",
    },
    "tasks": {"config", "registry", "errors", "files", "data", "language"},
}
NO_JAX = (
    "config",
    "data",
    "errors",
    "files",
    "json_file",
    "language",
    "locks",
    "model_forms",
    "registry",
    "tasks",
    "version",
)
JAX = ("jax", "flax", "optax", "orbax")
FILES = sorted(PACKAGE.rglob("*.py"))


def imports_of(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    return (
        {f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.ImportFrom)
        else set()
    )


@functools.cache
def imports(path: Path) -> set[str]:
    return {name for node in ast.walk(ast.parse(path.read_text())) for name in imports_of(node)}


CORE = [path for path in FILES if path.relative_to(PACKAGE).parts[0] != "extensions"]
EXTENSION_FILES = [path for path in FILES if path not in CORE and path.parent.name != "extensions"]
EXTENSIONS_WITHOUT_JAX = ("sweeps",)


def package_part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_follow_the_layers():
    wrong = []
    for path in CORE:
        own = package_part(path)
        assert own in ALLOWED_IMPORTS or own in ("api", "cli", "__main__", "__init__"), path
        for name in imports(path):
            if name.startswith("t2t_flax.") and own in ALLOWED_IMPORTS:
                wrong += (
                    [(path, name)] if name.split(".")[1] not in ALLOWED_IMPORTS[own] | {own} else []
                )
            if own in NO_JAX and name.split(".")[0] in JAX:
                wrong.append((path, name))
    assert not wrong


def test_the_core_does_not_know_the_extensions():
    """Only the loader names them."""
    named = [
        path.relative_to(PACKAGE).as_posix()
        for path in CORE
        if "t2t_flax.extensions" in path.read_text()
    ]
    assert named == ["registry.py"]


def test_extensions_import_the_core_themselves_and_what_is_shared():
    wrong = []
    for path in EXTENSION_FILES:
        own = path.relative_to(PACKAGE).parts[1]
        for name in imports(path):
            if name.startswith("t2t_flax.extensions") and name.split(".")[2] not in (own, "shared"):
                wrong.append((path, name))
            if own in EXTENSIONS_WITHOUT_JAX and name.split(".")[0] in JAX:
                wrong.append((path, name))
    assert not wrong


def test_files_of_the_core_import_each_other_in_one_direction():
    """Imports within functions and for types count too."""
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in CORE
    }

    def module(name: str) -> str:
        return name if name in files else name.rpartition(".")[0]

    left = {
        name: {module(each) for each in imports(path)} & files.keys() - {name}
        for name, path in files.items()
    }
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, "these import each other"


def test_only_one_module_imports_orbax():
    assert [p.name for p in FILES if any(n.startswith("orbax") for n in imports(p))] == [
        "checkpoints.py"
    ]
