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
        assert re.search(rf"^  {folder.name}/ ", tree, re.M), f"the tree lacks {folder.name}/"
    for name in re.findall(r"^(\w+)/ ", tree, re.M):
        assert (ROOT / name).is_dir(), name


def test_parts_of_the_tree_exist():
    """In the rows that name nothing but files."""
    tree = TEXT.split("## The code")[1].split("```")[1]
    checked = 0
    for folder, contents in re.findall(r"^  (\w+)/ +(.+)$", tree, re.M):
        names = [name.strip(" /") for name in re.sub(r"\(.*?\)", "", contents).split(" · ")]
        if len(names) > 1 and all(re.fullmatch(r"\w+", name) for name in names):
            checked += 1
            for name in names:
                path = ROOT / "t2t_flax" / folder / name
                assert path.is_dir() or path.with_suffix(".py").exists(), f"{folder}/ has no {name}"
    assert checked >= 3


def test_imports_run_as_it_says():
    from tests.test_layout import ALLOWED_IMPORTS

    text = re.search(r"Imports run one way.*?:(.*?)\. Four design", TEXT, re.S)[1]
    level = {name: i for i, layer in enumerate(text.split(", then ")) for name in re.findall(r"`(\w+)`", layer)}
    assert level.keys() & ALLOWED_IMPORTS.keys() >= {
        "config",
        "data",
        "models",
        "training",
        "decoding",
        "tasks",
        "evaluation",
    }
    for part, others in ALLOWED_IMPORTS.items():
        for other in others & level.keys() if part in level else ():
            assert level[other] <= level[part], f"{part} imports {other}"


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
        assert f"python -m t2t_flax {command}" in TEXT
    for config in (ROOT / "configs").glob("*.py"):
        assert config.stem in TEXT


def test_readme_is_short_and_complete():
    assert len(TEXT.splitlines()) <= 220 and "@@" not in TEXT
