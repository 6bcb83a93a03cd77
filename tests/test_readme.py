"""Claims of the README that can be checked automatically."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_files_of_the_tree_exist():
    tree = TEXT.split("## The code")[1].split("```")[1]
    for name in re.findall(r"^  (\w+)/ ", tree, re.M):
        assert (ROOT / "t2t_flax" / name).is_dir()
    for folder in (path.parent for path in (ROOT / "t2t_flax").glob("*/__init__.py")):
        assert re.search(rf"\b{folder.name}/", tree), f"the tree lacks {folder.name}/"
    for name in re.findall(r"^(\w+)/ ", tree, re.M):
        assert (ROOT / name).is_dir(), name


def test_files_to_read_exist():
    names = re.findall(r"`([\w/]+\.py)`", TEXT.split("Read these eight files")[1].split("[docs/architecture")[0])
    assert len(names) == 8
    for name in names:
        assert (ROOT / "t2t_flax" / name).exists(), name


def test_named_records_and_keys_exist():
    from t2t_flax.config.schema import fields

    for path in re.findall(r"\((benchmarks/results/[^)]+)\)", TEXT):
        assert (ROOT / path).exists(), path
    for key in re.findall(r"--config\.([a-z_]+\.[a-z_0-9]+)", TEXT):
        assert key in fields(), key
    for key in re.findall(r"`((?:data|model|train|mesh|optimizer)\.[a-z_]+)`", TEXT):
        assert key in fields(), key


def test_every_command_and_config_is_named():
    from t2t_flax.registry import COMMANDS, load_extensions

    load_extensions()
    for command in (name for name, row in COMMANDS.items() if not row.hidden):
        assert re.search(rf"(python -m t2t_flax |`){command}\b", TEXT), command
    for config in (ROOT / "configs").glob("*.py"):
        assert config.stem in TEXT


def test_readme_is_short():
    assert len(TEXT.splitlines()) <= 120
    assert max(len(cell) for line in TEXT.splitlines() if line.startswith("|") for cell in line.split("|")) <= 200
