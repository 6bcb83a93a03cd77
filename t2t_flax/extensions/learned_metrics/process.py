"""Process and virtual environment of a learned metric.

Its packages need versions that differ from ours: unbabel-comet pins NumPy below 2.
"""

import dataclasses
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from t2t_flax.errors import UserError
from t2t_flax.files import delete, expand_home


@dataclasses.dataclass(frozen=True)
class Packages:
    """Packages of the environment `folder`.

    Args:
        module: module that it must be able to import.
    """

    folder: str
    requirements: tuple[str, ...]
    module: str


_COMET = Packages(
    "comet-2.2.7", ("unbabel-comet==2.2.7", "setuptools<81", "sentencepiece<0.2.1"), "comet"
)
# It imports pkg_resources, and its protobuf is too old for a newer sentencepiece.
_METRICX = Packages(
    "metricx",
    ("transformers>=4.50,<5", "torch>=2.6", "sentencepiece", "protobuf", "numpy"),
    "transformers",
)
PACKAGES = {"comet": _COMET, "kiwi": _COMET, "metricx": _METRICX}
"""Packages of each metric."""
_DEFAULT = "~/.cache/t2t_flax/metrics"


def prepare_environment(packages: Packages, group: Any) -> str:
    """Return the interpreter of the packages' environment.

    It is made if it is missing. That takes some minutes and a few gigabytes. Raises UserError if it
    cannot be made.

    Args:
        group: keys of learned_metrics.
    """
    parent = Path(
        expand_home(group.environments or _DEFAULT, "config.learned_metrics.environments")
    )
    home = parent / packages.folder
    python = home / "bin" / "python"
    try:
        if python.exists():
            return str(python)
    except OSError as error:
        raise UserError(
            f"config.learned_metrics.environments: {home} cannot be read ({error.strerror}): ask"
            " its owner for access, or name another folder."
        ) from None
    print(
        f"making the environment {home}: {' '.join(packages.requirements)} (some minutes, a few"
        " gigabytes)",
        flush=True,
    )
    try:
        parent.mkdir(parents=True, exist_ok=True)
        private = Path(tempfile.mkdtemp(dir=parent, prefix=f".{packages.folder}-"))
    except OSError as error:
        raise UserError(
            f"config.learned_metrics.environments: {parent} cannot be written ({error.strerror}):"
            " name another folder."
        ) from None
    # With the permissions of the umask, which mkdtemp does not give.
    partial = private / packages.folder
    try:
        try:
            venv.create(partial, with_pip=True, symlinks=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UserError(
                f"the environment {home} of a learned metric could not be made: {error}"
            ) from None
        command = [
            str(partial / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            *packages.requirements,
        ]
        installed = subprocess.run(
            command, env=_own_packages(), capture_output=True, text=True, check=False
        )
        if installed.returncode:
            raise UserError(
                f"the packages of a learned metric could not be installed in {home}:"
                f" {_last_line(installed.stderr)} With network access, run:"
                f" {shlex.join([sys.executable, '-m', 'venv', str(home)])} &&"
                f" {shlex.join([str(python), '-m', 'pip', 'install', *packages.requirements])}"
            )
        try:
            os.rename(partial, home)  # the interpreter finds packages relative to its folder
        except OSError as error:
            if not python.exists():  # another process may have made it meanwhile
                raise UserError(
                    f"the environment {home} of a learned metric could not be made"
                    f" ({error.strerror}): remove that folder."
                ) from None
    finally:
        delete(private.parent, re.escape(private.name))
    return str(python)


def score_sentences(name: str, samples: list[dict[str, str]], group: Any) -> dict[str, Any]:
    """Return the scores of samples `{"src", "mt", "ref"}` by a metric.

    The result has `scores` (one for each, as the model gives them), and `model`, `revision`,
    `package`, `precision`, `device` and `licence` for the record. Raises UserError if the process
    fails; if the weights are missing, it says what to fetch.
    """
    python = prepare_environment(PACKAGES[name], group)
    model = getattr(group, name)
    request = {
        "metric": name,
        "model": model,
        "tokenizer": group.metricx_tokenizer,
        "precision": group.precision,
        "batch_size": group.batch_size,
        "samples": samples,
    }
    with tempfile.TemporaryDirectory(prefix="t2t-flax-metric-") as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(request))
        command = [python, str(Path(__file__).with_name("worker.py")), str(asked), str(answered)]
        done = subprocess.run(
            command, env=_own_packages(), stderr=subprocess.PIPE, text=True, check=False
        )
        if not answered.exists():
            advice = f"It ran {python}; remove that environment to make it anew."
            if "out of memory" in done.stderr.lower():
                advice = (
                    f"Lower learned_metrics.batch_size (now {group.batch_size}), or leave it more"
                    " of the GPU, of which JAX takes 75 % unless XLA_PYTHON_CLIENT_MEM_FRACTION"
                    " says otherwise."
                )
            raise UserError(
                f"the process of the metric {name} failed (exit code {done.returncode}):"
                f" {_last_line(done.stderr)} {advice}"
            )
        answer = json.loads(answered.read_text())
    if error := answer.get("missing"):
        needed = (
            f"the tokenizer {group.metricx_tokenizer}"
            if name == "metricx"
            else "its encoder (hparams.yaml names it)"
        )
        raise UserError(
            f"config.learned_metrics.{name} = {model}: the weights, or those of {needed}, are not"
            " on this machine and cannot be "
            f'downloaded ({error}). Where there is network access, run {python} -c "from'
            " huggingface_hub import "
            f"snapshot_download; snapshot_download('{model}')\" for each (KIWI and XCOMET ask for a"
            " login and a licence), and "
            "copy ~/.cache/huggingface here, or name a folder:"
            f" --config.learned_metrics.{name}=FOLDER."
        )
    if unknown := sum(not math.isfinite(score) for score in answer["scores"]):
        raise UserError(
            f"{model} gives {unknown} of {len(samples)} sentences a score that is no finite number,"
            f" with config.learned_metrics.precision = {group.precision}: try another."
        )
    return answer


def _own_packages() -> dict[str, str]:
    """Return variables with which a process sees only its environment's packages.

    It sees neither ours nor the modules beside its script.
    """
    kept = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")
    }
    return kept | {"PYTHONSAFEPATH": "1"}


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()] or ["no message."]
    errors = [line for line in lines if line.startswith(("ERROR", "E:"))]
    return (errors or lines)[-1][:300]
