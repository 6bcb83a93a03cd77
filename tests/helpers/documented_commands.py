"""The commands of README and docs as they are run by tests/documentation.

As written, after the README's installation, in the order of their page, each once.

Long commands are shortened by overrides at their end; the reader's own text is replaced by a
stand-in. A new kind of command fails until `shortened` handles it.
"""

import contextlib
import importlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from helpers.processes import environment, free_port
from t2t_flax.__main__ import main
from t2t_flax.extensions.planning.command import COMPILES

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "launch/README.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
TOY_RUN = re.compile(r"runs/toy(?![-\w])|=toy-")
"""What the README's first run leaves, or what is made of it."""
BEGINS = re.compile(
    r"(\$ |pip install -r \S+ && |cat \S+ \| |echo .* \| )*(python -m |launch/\w+\.sh )"
)

TINY = {
    "model.d_model": 16, "model.d_ff": 32, "model.num_heads": 2, "model.num_encoder_layers": 1, "model.num_decoder_layers": 1,
    "data.batch_tokens": 256, "data.pack_length": 64, "data.max_length": 64, "decode.max_length_offset": 4, "eval.bootstrap_samples": 20,
    "mesh.cpu_devices": 1,
}  # fmt: skip
SHORT = {
    "train.steps": 12,
    "checkpoint.every_steps": 4,
    "checkpoint.average_last": 2,
    "eval.every_steps": 6,
}
STEPS = {"900": "8", "1800": "12"}
"""Updates of the toy run that pages name, and those that stand for them."""
BUILT_IN = {
    "data.train": "toy:train:300",
    "data.valid": "toy:valid:12",
    "data.test": "toy:test:12",
    "data.vocab_size": 400,
}
OVERRIDES = {
    "configs/toy.py": TINY | SHORT | BUILT_IN,
    "configs/text.py": TINY | SHORT | {"data.vocab_size": 400},
    "configs/many_languages.py": TINY | SHORT | {"data.vocab_size": 400},
    "configs/multi30k.py": TINY | SHORT,
    "configs/multi30k_small.py": TINY | SHORT | {"data.vocab_size": 400},
    "runs/from-marian/config.json": {
        key: x for key, x in TINY.items() if not key.startswith("model.")
    }
    | SHORT,
    "configs/parsing.py": TINY | SHORT | {"data.vocab_size": 60, "decode.beam_size": 2},
}


def joined(text: str) -> str:
    return " ".join(text.replace("\\\n", " ").split())


def commands_of(page: str) -> list[str]:
    """The commands in code blocks and inline code of a page, as a reader copies them."""
    text, commands = (ROOT / page).read_text(), []
    for block, code in re.findall(r"^ *```(?:\w*)\n(.*?)^ *```|`([^`]+)`", text, re.M | re.S):
        lines = re.split(r"(?<!\\)\n *", block.lstrip()) if block else [code]
        commands += [
            joined(re.sub(r"\s+# .*", "", line)).removeprefix("$ ")
            for line in lines
            if BEGINS.match(line)
        ]
    return list(dict.fromkeys(commands))


def programs_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


def overrides(keys: dict) -> str:
    return "".join(f" --config.{key}={value}" for key, value in keys.items())


def shortened(command: str) -> str:
    """The command that is run for one of the page; "" if other tests cover it."""
    command = re.sub(r"^pip install -r requirements.txt && ", "", command)
    command = command.replace("--config=…", "--config=configs/toy.py").replace(
        "--workdir=…", "--workdir=runs/toy"
    )
    command = command.replace("train …", "train --config=configs/toy.py --workdir=runs/pod")
    command = command.replace("--average=8", "--average=2")  # of what SHORT leaves
    command = command.replace("layers_every=100", "layers_every=6 --config.log.every_steps=6")
    command = command.replace("local_pod.sh 4", "local_pod.sh 2")
    command = re.sub(r"(--step=|test-)(900|1800)\b", lambda step: step[1] + STEPS[step[2]], command)
    command = command.replace("--workdir=DIR", "--workdir=sweeps/dropout").replace(
        "=CONFIG", "=configs/toy.py"
    )
    if "…" in command or "COMMAND" in command or command == "python -m t2t_flax plan":
        return ""
    if command.startswith("launch/") and " -- " not in command:
        return f"bash -n {command.split()[0]}"  # the scripts have tests of their own
    if command.startswith("launch/local_pod.sh") and " train " in command:
        return ""  # tests/multiprocess trains with it
    if command.startswith(("launch/slurm.sh", "launch/tpu_vm.sh")):
        return command.replace(" -- ", " --dry-run -- ")
    if command.startswith(("python -m pytest", "python -m build", "python -m venv")):
        return ""
    if command.startswith("python -m tools."):
        return ""  # they write into the checkout; tests/test_docs.py and tools/toy_corpus have tests of them
    if "=gs://" in command:
        return ""  # tests/extensions/storage has a stand-in of the object store
    if "hub:" in command:
        return ""  # tests/extensions/interop/test_hub.py has a stand-in of the Hub
    if re.search(r"-[0-9a-f]{8}\.json", command):
        return ""  # the name of a record contains a digest of the config
    if re.search("configs/finetune.py|runs/nllb", command):
        return ""  # tests/extensions/interop/test_m2m100.py has a model of this kind
    if command.endswith("schedule=inverse") or "schedule=inverse " in command:
        return ""  # tests/training/test_extending.py trains with the example
    if "=comet" in command:
        return ""  # tests/extensions/learned_metrics has stand-ins of its packages and models
    if command.startswith("python -m benchmarks."):
        return command  # `run` looks for its flags in its help
    command = re.sub(
        r"\btoy:(train|valid|test)\b(:\d+)?", lambda spec: BUILT_IN[f"data.{spec[1]}"], command
    )
    name = re.search(r"t2t_flax (\w+)", command)[1]
    if name == "serve":
        command = re.sub(r" --port=\d+", "", command)
        return with_its_requests(f"{command} --port=$PORT --max-batch=1")
    if name == "plan":  # the compilers have tests of their own
        command = re.sub(r"--topology=\S+", "--topology=cpu:2", re.sub(r" --json=\S+", "", command))
        command = re.sub(r"mesh\.fsdp=\d+", "mesh.fsdp=2", command)
        return command + overrides(TINY)
    config = re.search(r"--config=(\S+)", command)
    if name == "explain" and config and config[1] in OVERRIDES:
        return f"{command} --config.mesh.cpu_devices=1"
    if name in ("train", "prepare", "list_dropped"):
        run = overrides(OVERRIDES[config[1]])
        if "mesh.fsdp" in command:
            run = run.replace(" --config.mesh.cpu_devices=1", "")  # it has its own
        return command.replace("alignments.layer=2", "alignments.layer=1") + run
    if name in ("fit_scaling", "check_sizes", "selftest"):
        return ""  # tests/extensions/scaling, mup and selftest run them
    if name == "plot":
        return re.sub(r" --metrics=\S+", "", command)  # too short a run lacks some
    if name == "branch":
        return re.sub(r"--tokens=\d+", "--tokens=2048 --factors=1,2 --noise-batches=16", command)
    if name == "sweep" and "--workdir=sweeps/dropout --set" in command:
        few = {"train.steps": 2, "checkpoint.every_steps": 2, "eval.every_steps": 2}
        command = command.replace("dropout=0.0,0.1 --seeds=2", "dropout=0.1 --seeds=1")
        return command + overrides(TINY | BUILT_IN | SHORT | few)
    if name == "sweep" and (config or "--sweep=" in command):
        return f"{command} --dry-run"
    return command


def follows_the_readme(page: str) -> bool:
    """Whether what it runs needs the README's first run."""
    return any(map(TOY_RUN.search, [*map(shortened, commands_of(page)), *programs_of(page)]))


def with_its_requests(command: str) -> str:
    """Starts the server, sends what docs/serving.md shows, and ends it."""
    requests = re.findall(r"^(curl .*)$", (ROOT / "docs" / "serving.md").read_text(), re.M)
    assert requests
    wait = "until curl -sf http://127.0.0.1:$PORT/ready; do kill -0 $server; sleep 0.2; done"
    sent = [
        request.replace("curl ", "curl -sS --fail-with-body ").replace(":8000/", ":$PORT/")
        for request in requests
    ]
    return "\n".join(
        [f"{command} & server=$!", "trap 'kill $server; wait $server' EXIT", wait, *sent]
    )


def run_programs(folder: Path, pages: list[str]) -> None:
    """Runs the pages' Python programs."""
    for page in pages:
        # Parts of files: tests/models/test_extending.py and others run them.
        if page == "docs/extending.md":
            continue
        for number, program in enumerate(programs_of(page)):
            if "sys.argv" in program:  # a test of its own gives it its arguments
                continue
            (folder / f"example{number}.py").write_text(
                program + "\nif 'get_sweep' in dir(): print(get_sweep())\n"
            )
            run(folder, f"python example{number}.py")


def run(folder: Path, command: str) -> None:
    """Runs a command in the folder.

    In this process where it needs no shell, no input and no devices of its own.
    """
    words = shlex.split(command.replace("$PWD", str(folder)))
    own = (
        {"|", "<", ">", "&&", "&"} & set(words)
        or "\n" in command
        or re.search(r"cpu_devices=[2-9]", command)
    )
    if words[:2] == ["python", "-m"] and words[2].startswith("benchmarks."):
        script = importlib.import_module(words[2]).main
        with mock.patch("sys.argv", [words[2], "--help"]):
            text = output_of(
                folder,
                lambda: script(["--help"]) if inspect.signature(script).parameters else script(),
            )
        assert all(flag in text for flag in re.findall(r" (--[\w-]+)", command)), (
            f"{command}\n{text}"
        )
    elif words[:3] == ["python", "-m", "t2t_flax"] and words[3] != "serve" and not own:
        with mock.patch.dict("os.environ", {COMPILES: "1"}):  # else `plan` starts again
            output_of(folder, lambda: main(words[3:]))
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment(PATH=path, PORT=str(free_port())),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800,
        )  # fmt: skip
        assert done.returncode == 0 and "Traceback" not in done.stdout, (
            f"{command}\n{done.stdout[-4000:]}"
        )


def output_of(folder: Path, call: Callable[[], int | None]) -> str:
    """What the call prints in the folder; its exit code must be 0."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = call()
        except SystemExit as stop:
            code = stop.code
        text = out.buffer.getvalue().decode()
    assert not code and "Traceback" not in text, text[-4000:]
    return text
