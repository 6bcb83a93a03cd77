"""One attempt at a trial, or at several that train together: `train` in a process of its own, which the worker watches."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from t2t_flax import config as config_lib
from t2t_flax import errors
from t2t_flax.config import Config, parse_test_sets
from t2t_flax.errors import UserError
from t2t_flax.filesystem import is_remote
from t2t_flax.process_setup import ALONE, child_environment
from t2t_flax.sweeps.folder import COMPLETE, DIVERGED, FAILED, MISTAKE, PRUNED, STOPPED, Claim, Folder
from t2t_flax.sweeps.shares import Share

POLL = 0.2
"""Seconds between looks at a training process."""
TAIL = 25
"""Lines of a failed trial's log that are shown."""


def attempt(
    folder: Folder, names: list[str], claims: list[Claim], share: Share, *, retries: int, stopping: Callable[[], bool],
    prune: Callable[[], bool] = lambda: False, code: str = "", cwd: str | None = None,
) -> dict[str, str]:  # fmt: skip
    """Trains claimed trials, several of them together, until they end; says of each whether it is `complete`, `stopped`,
    `failed` or `pruned`, and notes it. A trial that has diverged is noted as such, with the reason, and has failed for good.

    stopping: whether the worker is to end, upon which the training saves and stops. prune: whether the trial is to.
    A trial that failed by itself more than `retries` times is given up; one that a mistake ended waits for somebody to see
    to it. cwd: where relative paths of the configs start. Raises UserError where they have some and it is not there.
    """
    if cwd and not os.path.isdir(cwd):
        for name in names:
            check_no_relative_path(folder.config(name), cwd)
        cwd = None
    numbers = {name: 1 + sum(line["event"] == "begin" for line in folder.attempts(name)) for name in names}
    together = names if len(names) > 1 else []
    for name in names:
        begun = dict(attempt=numbers[name], code=code, share=share.told, together=together)
        folder.note(name, event="begin", at=folder.newest(name), **begun)
        _divergence(folder, name).unlink(missing_ok=True)  # of an attempt before
        say_in_log(
            folder,
            name,
            f"== attempt {numbers[name]}, {share.told}" + (f", log: {names[0]}" if name != names[0] else ""),
        )
    began = time.monotonic()
    with folder.log(names[0]).open("ab") as log:
        process = subprocess.Popen(
            command(folder, names, share),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment(**share.environment, **{ALONE: "1"}),
            cwd=cwd or None,
            pass_fds=[claim.descriptor for claim in claims],
            start_new_session=True,
        )
    pruned = asked = False
    while (exit_code := process.poll()) is None:
        if not asked and prune():
            pruned = True
            folder.note(names[0], event="pruning", attempt=numbers[names[0]])  # a decision that outlives this worker
        if (pruned or stopping()) and not asked:
            asked = True
            process.send_signal(signal.SIGTERM)
        time.sleep(POLL)
    ended = exit_code == errors.STOPPED or asked and exit_code == -signal.SIGTERM  # the latter before it could save
    outcome = (PRUNED if pruned else STOPPED) if ended else COMPLETE if exit_code == errors.OK else FAILED
    if outcome == COMPLETE:  # where it left no marker, it was not
        outcome = FAILED
    outcomes = {name: COMPLETE if folder.state(name) == COMPLETE else outcome for name in names}
    reasons = {name: _reason(folder, name) for name in names if outcomes[name] != COMPLETE}
    outcomes |= {name: FAILED for name, reason in reasons.items() if reason}
    for name, found in outcomes.items():
        seconds = round(time.monotonic() - began, 1)
        told = dict(attempt=numbers[name], exit=exit_code, asked=asked, seconds=seconds, together=together)
        folder.note(name, event=found, **told)
        if reasons.get(name):
            folder.note(name, event=DIVERGED, attempt=numbers[name], reason=reasons[name])
        elif found == FAILED and not together:
            if exit_code == errors.USER_ERROR:
                folder.note(name, event=MISTAKE, attempt=numbers[name])
            elif folder.failures(name) > retries:
                folder.note(name, event="given up", attempt=numbers[name])
        if found == FAILED and name != names[0]:
            say_in_log(folder, name, log_tail(folder, names[0]))
    return outcomes


def check_no_relative_path(config: Path, cwd: str) -> None:
    """Raises UserError where a trial's config has paths that start from `cwd`, a folder that is not there: from another one
    they would name other files.
    """
    if found := relative_paths(config_lib.from_json(config.read_text())):
        told = ", ".join(f"config.{key} = {value!r}" for key, value in found.items())
        raise UserError(
            f"the sweep was made in {cwd}, which this host does not have, and {config} has paths that start there: {told}. "
            "Join it where that folder is, or make the sweep anew with absolute paths."
        )


def relative_paths(config: Config) -> dict[str, str]:
    """The keys of a config that hold relative paths, with their values."""
    data, found = config.data, {}
    absolute = lambda path: is_remote(path) or os.path.isabs(os.path.expanduser(path.strip()))  # noqa: E731
    if data.root and not absolute(data.root):
        found["data.root"] = data.root
    for key in () if data.root else ("train", "valid", "test"):
        specs = parse_test_sets(data.test).values() if key == "test" else [getattr(data, key)]
        files = [file for spec in specs if not spec.startswith(("toy:", "tfds:")) for file in spec.split(",")]
        if not all(absolute(file) for file in files if file.strip()):
            found[f"data.{key}"] = getattr(data, key)
    own = {"data.cache": data.cache, "data.tokenizer_model": "" if data.root else data.tokenizer_model}
    own |= {"train.init_from": config.train.init_from, "train.compile_cache": config.train.compile_cache}
    return found | {key: path for key, path in own.items() if path and not absolute(path)}


def _divergence(folder: Folder, name: str) -> Path:
    return folder.workdir(name) / "diverged.json"


def _reason(folder: Folder, name: str) -> str:
    """Why a trial has diverged, from the mark that its training left; empty where it has not."""
    mark = _divergence(folder, name)
    return json.loads(mark.read_text())["reason"] if mark.exists() else ""


def say_in_log(folder: Folder, name: str, text: str) -> None:
    """Adds to a trial's log."""
    folder.log(name).parent.mkdir(parents=True, exist_ok=True)
    with folder.log(name).open("ab") as log:
        log.write(f"{text}\n".encode())


def command(folder: Folder, names: list[str], share: Share) -> list[str]:
    """The training of trials, as this worker starts it. Their stores lie in the sweep's folder, wherever this host sees it,
    unless the config says where.
    """
    cores = ",".join(map(str, share.cores)) or "-"
    train = ["t2t_flax", "train" if len(names) == 1 else "train_together"]
    for name in names:
        train += [f"--config={folder.config(name)}", f"--workdir={folder.workdir(name)}"]
    if not config_lib.from_json(folder.config(names[0]).read_text()).data.cache:
        train += [f"--config.data.cache={folder.path / 'data'}"]
    leash = str(Path(__file__).with_name("leash.py"))
    return [sys.executable, "-S", leash, str(os.getpid()), cores, sys.executable, "-m", *train]


def log_tail(folder: Folder, name: str) -> str:
    """The last lines of a trial's log."""
    path = folder.log(name)
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 20_000))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL:])
