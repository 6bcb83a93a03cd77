"""Everything that can be seen of a run in its workdir, for the comparison of two runs."""

import json
from pathlib import Path
from typing import Any

TIMES = ("seconds", "target_tokens_per_second", "mfu_", "init_timestamp", "commit_timestamp")
"""How the names of times begin in JSON files."""
DERIVED = ("digest",)
"""Digests of JSON that contains times."""


class Difference(Exception):
    """A stopped run differs from the undisturbed one, or could not be completed."""


def visible(workdir: Path) -> dict[str, Any]:
    """Return everything that a user may look at in a workdir, except times and its own name."""
    from t2t_flax.evaluation.restore import load

    found: dict[str, Any] = {}
    for path in sorted(workdir.rglob("*")):
        name = str(path.relative_to(workdir))
        if name.startswith("checkpoints/") and name.count("/") > 2 and "/meta/" not in name:
            continue  # parts of arrays
        if path.suffix == ".t2t-lock":  # which a killed export leaves, and the next one removes
            continue
        if path.is_dir() or path.name == ".lock":  # which has the id of a process
            found[name] = None
            continue
        data = path.read_bytes().replace(str(workdir).encode(), b"WORKDIR")
        if name == "exported/README.md":  # names the run by its folder
            data = data.replace(workdir.name.encode(), b"RUN")
        if path.suffix == ".safetensors":  # which writes its metadata in any order
            end = 8 + int.from_bytes(data[:8], "little")
            data = [json.loads(data[8:end]), data[end:]]
        elif path.suffix == ".jsonl":
            data = [without_times(json.loads(line)) for line in data.splitlines()]
        elif path.suffix == ".json" or path.name in ("metadata", "_CHECKPOINT_METADATA"):
            data = without_times(json.loads(data))
        found[name] = data
    found |= {f"array {name}": value for name, value in arrays(workdir / "checkpoints").items()}
    for choice in (dict(average=2), dict(best=True)):
        found[f"chosen by {choice}"] = load(
            workdir, at_most=True, overrides={"mesh.data": "-1"}, **choice
        ).steps
    return found


def arrays(checkpoints: Path) -> dict[str, bytes]:
    """Return the bytes of every array of every checkpoint."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    found, handler = {}, ocp.PyTreeCheckpointHandler()
    for item in sorted(checkpoints.glob("[0-9]*/*")):
        if item.name in ("params", "opt_state", "ema"):
            as_numpy = jax.tree.map(
                lambda _: ocp.RestoreArgs(restore_type=np.ndarray), handler.metadata(item).tree
            )
            tree = handler.restore(item, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
            for path, leaf in jax.tree.leaves_with_path(tree):
                found[f"{item.relative_to(checkpoints)} {jax.tree_util.keystr(path)}"] = np.asarray(
                    leaf
                ).tobytes()
    return found


def without_times(value: Any) -> Any:
    """Without measurements of time, which differ from run to run."""
    if isinstance(value, dict):
        return {
            name: without_times(item)
            for name, item in value.items()
            if not name.startswith(TIMES) and not (name in DERIVED and "checksums" in value)
        }
    return [without_times(item) for item in value] if isinstance(value, list) else value


def compare(whole: dict[str, Any], stopped: dict[str, Any]) -> None:
    """Raise Difference, naming the difference."""
    if more := sorted(stopped.keys() - whole.keys()):
        raise Difference(f"only in the stopped run: {more[:8]}")
    if missing := sorted(whole.keys() - stopped.keys()):
        raise Difference(f"missing in the stopped run: {missing[:8]}")
    for name, value in whole.items():
        if value != stopped[name]:
            raise Difference(
                f"{name} differs: {str(value)[:1500]} and, stopped, {str(stopped[name])[:1500]}"
            )
