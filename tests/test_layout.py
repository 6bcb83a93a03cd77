"""Package layering and file size."""

import ast
import functools
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "t2t_flax"
ALLOWED_IMPORTS = {
    "errors": set(),
    "registry": {"extensions"},  # loads them
    "version": set(),
    "filesystem": {"errors", "registry"},
    "json_file": set(),
    "locks": {"errors", "filesystem", "json_file", "registry"},
    "config": {"errors", "json_file", "registry"},
    "process_setup": {"config", "errors"},
    "model_forms": {"config", "errors", "registry"},
    "data": {"config", "registry", "errors", "filesystem", "json_file", "locks"},
    "models": {"config", "errors", "registry"},
    "distributed": {"config", "errors", "filesystem", "process_setup", "registry"},
    "training": {
        "registry",
        "config",
        "errors",
        "filesystem",
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
        "filesystem",
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
        "filesystem",
        "json_file",
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
    "tasks": {"config", "registry", "errors", "filesystem", "data"},
}
NO_JAX = (
    "config",
    "data",
    "errors",
    "filesystem",
    "json_file",
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
    return {f"{node.module}.{alias.name}" for alias in node.names} if isinstance(node, ast.ImportFrom) else set()


@functools.cache
def imports(path: Path) -> set[str]:
    return {name for node in ast.walk(ast.parse(path.read_text())) for name in imports_of(node)}


CORE = [path for path in FILES if path.relative_to(PACKAGE).parts[0] != "extensions"]
EXTENSION_FILES = [path for path in FILES if path not in CORE and path.parent.name != "extensions"]
EXTENSIONS_WITHOUT_JAX = ("sweeps",)
WITH_JAX = ("stacked_runs.py",)
"""Imported by the process that trains, not by that of the sweep."""


def package_part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def package_part_of_extension(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[1]


def test_imports_follow_the_layers():
    wrong = []
    for path in CORE:
        own = package_part(path)
        assert own in ALLOWED_IMPORTS or own in ("api", "cli", "jobs", "__main__", "__init__"), path
        for name in imports(path):
            if name.startswith("t2t_flax.") and own in ALLOWED_IMPORTS:
                wrong += [(path, name)] if name.split(".")[1] not in ALLOWED_IMPORTS[own] | {own} else []
            if own in NO_JAX and name.split(".")[0] in JAX:
                wrong.append((path, name))
    assert not wrong


def test_the_core_does_not_know_the_extensions():
    """Only the loader names them."""
    named = [path.relative_to(PACKAGE).as_posix() for path in CORE if "t2t_flax.extensions" in path.read_text()]
    assert named == ["registry.py"]


def test_extensions_import_the_core_themselves_and_what_is_shared():
    wrong = []
    for path in EXTENSION_FILES:
        own = path.relative_to(PACKAGE).parts[1]
        for name in imports(path):
            if name.startswith("t2t_flax.extensions") and name.split(".")[2] not in (own, "shared"):
                wrong.append((path, name))
            if own in EXTENSIONS_WITHOUT_JAX and path.name not in WITH_JAX and name.split(".")[0] in JAX:
                wrong.append((path, name))
    assert not wrong


def test_what_is_shared_serves_several_extensions():
    """What one extension alone uses is its own; what the core uses is the core's."""
    files = [path for path in EXTENSION_FILES if package_part_of_extension(path) == "shared"]
    for path in files:
        module = f"t2t_flax.extensions.shared.{path.stem}"
        users = {
            package_part_of_extension(other)
            for other in EXTENSION_FILES
            if any(name.startswith(module) for name in imports(other))
        }
        assert path.stem == "__init__" or len(users - {"shared"}) > 1, path


def test_tests_of_the_core_need_no_extension():
    """They are collected where one is removed. What helps tests of extensions is used by these alone."""
    helpers = ("http_server.py", "random_trees.py")
    files = [
        path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).parts[0] not in ("extensions", "benchmarks")
    ]
    for path in files:
        if path.name in helpers:
            continue
        found = {name for node in ast.parse(path.read_text()).body for name in imports_of(node)}
        of_helpers = tuple(f"helpers.{name.removesuffix('.py')}" for name in helpers)
        assert not [name for name in found if name.startswith(of_helpers)], path
        of_extensions = [name.split(".")[2] for name in found if name.startswith("t2t_flax.extensions.")]
        assert not set(of_extensions) - {"shared"}, path


def test_each_extension_has_a_test_in_the_default_suite():
    names = {package_part_of_extension(path) for path in EXTENSION_FILES} - {"shared"}
    for name in sorted(names):
        texts = [path.read_text() for path in (TESTS / "extensions" / name).glob("test_*.py")]
        assert any("mark.smoke" in text for text in texts), name


def test_only_one_module_imports_orbax():
    assert [p.name for p in FILES if any(n.startswith("orbax") for n in imports(p))] == ["checkpoints.py"]


def test_file_length_and_name():
    assert not [path for path in FILES if len(path.read_text().splitlines()) > 400]
    assert not [path for path in FILES if path.name in ("utils.py", "helpers.py", "misc.py")]
