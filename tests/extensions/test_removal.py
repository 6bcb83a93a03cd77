"""Each extension can be removed: its folder, its tests, its page and its line. The core's commands then still work, and what is
missing is named.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers.configs import TINY_FLAGS
from helpers.forked_python import ForkedPython

from t2t_flax.extensions import EXTENSIONS, KNOWN
from t2t_flax.registry import (
    ARCHITECTURES,
    ATTENTION_KERNELS,
    COMMANDS,
    DECODERS,
    FEED_FORWARDS,
    FLAGS,
    GROUPS,
    METRICS,
    MIXERS,
    NORMS,
    OPTIMIZERS,
    POSITIONS,
    SCHEDULES,
    SCORES,
    SEARCHES,
    SOURCES,
    TASKS,
    TOKENIZER_FILES,
    TOKENIZERS,
    load_extensions,
)

ROOT = Path(__file__).parents[2]
REGISTERED = {
    "commands": COMMANDS,
    "groups": GROUPS,
    "flags": FLAGS,
    "metrics": METRICS,
    "sources": SOURCES,
    "decode.engine": DECODERS,
    "decode.strategy": SEARCHES,
    "data.task": TASKS,
    "data.tokenizer": TOKENIZERS,
    "tokenizer files": TOKENIZER_FILES,
    "model.architecture": ARCHITECTURES,
    "model.attention_kernel": ATTENTION_KERNELS,
    "model.mixer": MIXERS,
    "model.attention_score": SCORES,
    "model.position": POSITIONS,
    "model.feed_forward": FEED_FORWARDS,
    "model.norm_type": NORMS,
    "optimizer.name": OPTIMIZERS,
    "optimizer.schedule": SCHEDULES,
}


def module_of(row) -> str:
    """Of a row of a table; of a flag that stands for a config key, that of its group."""
    if isinstance(row, str):
        return row
    return getattr(row, "module", row.__module__) or GROUPS[row.key.partition(".")[0]].__module__


def test_what_extensions_add_is_known():
    """By `KNOWN`, from which messages name an extension that is absent."""
    load_extensions()
    assert set(KNOWN) == set(EXTENSIONS)
    for kind, table in REGISTERED.items():
        known = {name: extension for extension, rows in KNOWN.items() for name in rows.get(kind, ())}
        modules = {name: module_of(row) for name, row in table.items()}
        shared = {name for name, module in modules.items() if module.startswith("t2t_flax.extensions.shared.")}
        added = {
            name: known[name] if name in shared else module.split(".")[2]
            for name, module in modules.items()
            if module.startswith("t2t_flax.extensions.")
        }
        assert added == known, kind


def checkout_without(extensions: Sequence[str], folder: Path) -> Path:
    """A copy of what a user installs and of the configs, with these extensions removed as the documentation says."""
    # Compiled files stay valid: a copy has the same times.
    for name in ("t2t_flax", "configs"):
        shutil.copytree(ROOT / name, folder / name)
    loader = folder / "t2t_flax" / "extensions" / "__init__.py"
    text = loader.read_text()
    head, names, tail = re.split(r"(EXTENSIONS = \(.*?\)\n)", text, maxsplit=1, flags=re.S)
    for extension in extensions:
        shutil.rmtree(folder / "t2t_flax" / "extensions" / extension)
        names = re.sub(rf'"{extension}",?\s?', "", names)
    loader.write_text(head + names + tail)
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Runs the package of the current folder."""
    environment = {name: x for name, x in os.environ.items() if name not in ("PYTHONPATH", "JAX_NUM_CPU_DEVICES")}
    with ForkedPython(tmp_path_factory.mktemp("python") / "bin", environment, modules=()) as python:
        yield python


COMMANDS_OF_STDIN = """
import contextlib, io, json, sys, traceback
from t2t_flax.__main__ import main

for line in sys.stdin:
    words, text = json.loads(line)
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
    print(json.dumps([code, *(each.buffer.getvalue().decode() for each in (out, err))]), flush=True)
"""


@contextlib.contextmanager
def commands(python: ForkedPython, checkout: Path):
    """A function that runs a command in a process of this checkout, the same for all: its output, where it ends with `code`; of
    another code than 0 what it writes to standard error.
    """
    program = checkout / "commands_of_stdin.py"
    program.write_text(COMMANDS_OF_STDIN)
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([python.program, program], cwd=checkout, **pipes) as process:

        def run(*words: str, code: int = 0, stdin: str = "") -> str:
            print(json.dumps([words, stdin]), file=process.stdin, flush=True)
            found, out, err = json.loads(process.stdout.readline())
            assert found == code and "Traceback" not in err, err
            return err if code else out

        yield run
        process.stdin.close()


@pytest.fixture(scope="module")
def core_run(tmp_path_factory, python):
    """The workdir of a run of the core alone: with all extensions removed, its commands work."""
    folder = tmp_path_factory.mktemp("core")
    checkout, workdir = checkout_without(EXTENSIONS, folder / "checkout"), f"--workdir={folder / 'run'}"
    with commands(python, checkout) as run:
        run("prepare", *TINY_FLAGS, workdir)
        run("train", *TINY_FLAGS, workdir)
        run("evaluate", workdir, "--split=valid")
        assert len(run("translate", workdir, stdin="It is late.\nA dog.\n").splitlines()) == 2
        run("explain", workdir)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_an_extension_can_be_removed(extension, core_run, tmp_path, python):
    """The others load without it, a run of the core translates, and what is missing is named."""
    checkout = checkout_without([extension], tmp_path / "checkout")
    shutil.copytree(core_run, tmp_path / "run")
    with commands(python, checkout) as run:
        check_without(extension, checkout, tmp_path, run)


def check_without(extension: str, checkout: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    """Uses a run in a checkout without the extension, and asks for what it adds."""
    workdir = f"--workdir={tmp_path / 'run'}"
    assert run("translate", workdir, stdin="It is late.\n").count("\n") == 1
    named = f"extension {extension}, which this installation does not have"
    for command in KNOWN[extension].get("commands", ()):
        assert named in run(command, code=2)
    for group in KNOWN[extension].get("groups", ()):
        assert named in run("explain", *TINY_FLAGS, f"--config.{group}.anything=1", code=2)
        lines = (
            "from t2t_flax.config import default_config",
            "def get_config():",
            f"    default_config().{group}.anything = 1",
        )
        (checkout / "file.py").write_text("\n".join(lines))
        assert named in run("explain", "--config=file.py", code=2)
        stored = tmp_path / "run" / "config.json"
        config = json.loads(stored.read_text())
        stored.write_text(json.dumps(config | {group: {"anything": 1}}))
        assert named in run("translate", workdir, code=2, stdin="It is late.\n")
        stored.write_text(json.dumps(config))
    for flag in KNOWN[extension].get("flags", ()):
        assert named in run("translate", workdir, f"{flag}=x", code=2)
    for flag in KNOWN[extension].get("repeated flags", ()):
        assert named in run("translate", workdir, f"{flag}=x", code=2, stdin="It is late.\n")
    for source in KNOWN[extension].get("sources", ()):
        for spec in (f"{source}:x", f"x.{source}.gz"):
            assert named in run(
                "prepare", *TINY_FLAGS, f"--config.data.train={spec}", f"--workdir={tmp_path / 'new'}", code=2
            )
    if "patterns" in KNOWN[extension]:
        pattern = "--config.data.train=x*.en,x*.de"
        assert named in run("prepare", *TINY_FLAGS, pattern, f"--workdir={tmp_path / 'new'}", code=2)
    for metric in KNOWN[extension].get("metrics", ()):
        assert named in run("mbr", f"--utility={metric}", code=2)
    for task in KNOWN[extension].get("data.task", ()):
        assert named in run(
            "prepare", *TINY_FLAGS, f"--config.data.task={task}", f"--workdir={tmp_path / 'new'}", code=2
        )
    for preset in KNOWN[extension].get("presets", ()):
        assert named in run("explain", f"--config={preset.replace('*', '9')}", code=2)
    if "workdirs" in KNOWN[extension]:
        assert named in run("translate", "--workdir=pretrained:toy", code=2, stdin="It is late.\n")
        (tmp_path / "exported").mkdir()
        (tmp_path / "exported" / "model.safetensors").touch()
        assert named in run("translate", f"--workdir={tmp_path / 'exported'}", code=2, stdin="It is late.\n")
    if "paths" in KNOWN[extension]:
        assert named in run("train", *TINY_FLAGS, "--workdir=gs://bucket/run", code=2)
        assert named in run(
            "prepare", *TINY_FLAGS, "--config.data.cache=s3://bucket/x", f"--workdir={tmp_path / 'new'}", code=2
        )
    for key, values in KNOWN[extension].items():
        for value in values if key.startswith(("decode.", "model.", "optimizer.", "data.tokenizer")) else ():
            assert named in run("explain", *TINY_FLAGS, f"--config.{key}={value}", code=2)
