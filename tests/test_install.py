"""Requirements of the package, and install hints in messages."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from helpers.refusals import refused

from t2t_flax.data.sources import open_source
from t2t_flax.errors import install_hint
from t2t_flax.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def requirements(file: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
    return sorted(line for line in lines if line and not line.startswith("-r"))


def names(file: str) -> set[str]:
    return set(map(name_of, requirements(file)))


def extras() -> dict[str, set[str]]:
    return {
        extra: set(map(name_of, needs)) for extra, needs in PROJECT["optional-dependencies"].items()
    }


def imported(folder: str) -> set[str]:
    """Top-level third-party modules that the files of a folder import."""
    names = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module]
            names |= {module.partition(".")[0] for module in modules}
    own = {
        "t2t_flax",
        "benchmarks",
        "launch",
        "tests",
        "tools",
        *(path.stem for path in (ROOT / "tests").iterdir()),
    }
    return names - set(sys.stdlib_module_names) - own


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (__version__, PROJECT["license"])


def test_the_extra_for_tests_is_the_requirements_file():
    assert requirements("requirements.txt") == sorted(PROJECT["optional-dependencies"]["dev"])


def test_every_import_of_the_package_is_required():
    known = importlib.metadata.packages_distributions()
    optional = set().union(*extras().values())
    known = {"mlflow": ["mlflow-skinny"], **known}  # where it is not installed
    # Of jax[tpu], jax[cuda13], etils[epath], another environment.
    others = {
        "libtpu",
        "jax_plugins",
        "fsspec",
        "comet",
    }
    for module in imported("t2t_flax") - others:
        distributions = {name_of(name) for name in known.get(module, [module])}
        assert distributions & (names("requirements-run.txt") | optional), (
            f"nothing installs {module}"
        )


def test_install_hints_name_an_extra():
    """Those that the modules of the package ask for."""
    package = ROOT / "t2t_flax"
    asked = re.compile(r"""install_hint\(["']([^"']+)["']\)|require\([^,]+, "([^"]+)\"""")
    found = {
        name
        for path in package.rglob("*.py")
        for names in asked.findall(path.read_text())
        for name in names
        if name
    }
    assert len(found) > 8 and found <= extras().keys()
    assert "[s3]" in install_hint("s3")


@pytest.mark.parametrize("spec, module, extra", [
    ("tfds:wmt14_translate/de-en:train", "tensorflow_datasets", "tfds"), ("a.parquet", "pyarrow", "arrow"),
    ("hf:folder:train", "pyarrow", "arrow"), ("a.en.zst,a.de.zst", "pyarrow", "arrow"),
])  # fmt: skip
def test_a_source_without_its_package_names_the_extra(tmp_path, monkeypatch, spec, module, extra):
    for name in ("a.parquet", "a.en.zst", "a.de.zst"):
        (tmp_path / name).write_bytes(b"\x28\xb5\x2f\xfd")  # as a .zst file begins
    monkeypatch.setitem(sys.modules, module, None)
    with refused(module, f"[{extra}]"):
        list(
            open_source(
                spec, root=str(tmp_path), source_language="en", target_language="de"
            ).pairs()
        )


def test_documented_extras_exist():
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("launch/*"),
        *ROOT.glob("t2t_flax/**/*.py"),
    ]:
        for extra in re.findall(r"-e '?\.\[(\w+)\]", path.read_text()) if path.is_file() else ():
            assert extra in extras(), f"{path.name} names the extra {extra}"


def test_the_package_contains_every_data_file():
    """The server's page, the models, the corpus."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]
    listed = {
        path
        for name, patterns in data.items()
        for p in patterns
        for path in (ROOT / name.replace(".", "/")).glob(p)
    }
    files = {
        p for p in (ROOT / "t2t_flax").rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")
    }
    assert files - listed == set() and ROOT / "t2t_flax/extensions/serving/page/index.html" in files
