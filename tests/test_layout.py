"""Package layering and file size."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "t2t_flax"
ALLOWED_IMPORTS = {
    "errors": set(),
    "version": set(),
    "tables": set(),
    "filesystem": {"errors"},
    "json_file": {"errors"},
    "lock_holder": {"errors", "filesystem"},
    "leases": {"errors", "filesystem", "lock_holder"},
    "locks": {"errors", "filesystem", "leases", "lock_holder"},
    "config": {"errors", "json_file"},
    "process_setup": {"config", "errors"},
    "pretrained": {"errors"},
    "data": {"config", "errors", "filesystem", "json_file", "locks", "pretrained"},
    "models": {"config", "errors"},
    "distributed": {"config", "errors", "filesystem", "process_setup"},
    "monitoring": {"config", "errors", "filesystem", "models"},
    "interop": {"config", "errors", "filesystem", "json_file", "locks", "data", "models", "decoding"},
    "training": {
        "config",
        "errors",
        "filesystem",
        "json_file",
        "locks",
        "data",
        "tasks",
        "models",
        "distributed",
        "monitoring",
        "interop",
        "pretrained",
        "version",
    },
    "decoding": {"config", "errors", "filesystem", "data", "models", "distributed", "monitoring"},
    "evaluation": {
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
        "interop",
        "pretrained",
        "tasks",
        "version",
    },
    "tasks": {"config", "errors", "filesystem", "data"},
    "serving": {
        "config",
        "errors",
        "data",
        "distributed",
        "process_setup",
        "decoding",
        "evaluation",
        "tasks",
        "version",
    },
    "sweeps": {
        "config",
        "errors",
        "filesystem",
        "locks",
        "data",
        "distributed",
        "process_setup",
        "monitoring",
        "evaluation",
        "pretrained",
        "tables",
        "tasks",
        "version",
    },
    "planning": {
        "config",
        "errors",
        "filesystem",
        "data",
        "models",
        "distributed",
        "process_setup",
        "monitoring",
        "training",
        "decoding",
        "tables",
    },
}
NO_JAX = (
    "config",
    "data",
    "errors",
    "filesystem",
    "json_file",
    "locks",
    "pretrained",
    "sweeps",
    "tables",
    "tasks",
    "version",
)
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def package_part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_layers(path):
    own = package_part(path)
    if own not in ALLOWED_IMPORTS:
        assert own in ("api", "cli", "jobs", "__main__", "__init__")
        return
    for name in imports(path):
        if name.startswith("t2t_flax."):
            other = name.split(".")[1]
            assert other == own or other in ALLOWED_IMPORTS[own], f"{path.name} in {own} imports {name}"
        if own in NO_JAX:
            assert name.split(".")[0] not in ("jax", "flax", "optax", "orbax"), f"{path.name} imports {name}"


def test_only_one_module_imports_orbax():
    assert [p.name for p in FILES if any(n.startswith("orbax") for n in imports(p))] == ["checkpoints.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_file_length_and_name(path):
    assert len(path.read_text().splitlines()) <= 400
    assert path.name not in ("utils.py", "helpers.py", "misc.py")
