"""Data points of a fit: runs as sizes, data and losses.

The runs come from sweeps and other workdirs.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.files import list_names
from t2t_flax.training.checkpoints import finished_steps, read_meta
from t2t_flax.training.progress import read_metrics


@dataclasses.dataclass(frozen=True)
class RunPoint:
    """A run up to its lowest validation loss.

    Args:
        encoder: parameters of the encoder's layers, without embeddings.
        decoder: parameters of the decoder's layers.
        tokens: target tokens that the run was trained on.
        corpus: target tokens of its training pairs.
        flops: FLOPs of training, 6 for each parameter and token of its side.
        loss: lowest validation loss, nats per token without label smoothing.
        tokenizer: digest of the run's tokenizers.
    """

    name: str
    encoder: int
    decoder: int
    tokens: float
    corpus: float
    flops: float
    loss: float
    tokenizer: str = ""

    @property
    def parameters(self) -> int:
        return self.encoder + self.decoder

    def inputs(self, names: Iterable[str]) -> list[float]:
        """Return the inputs by the names of `laws.Law.inputs`."""
        return [float(getattr(self, INPUTS[name])) for name in names]


INPUTS = {
    "parameters": "parameters",
    "encoder parameters": "encoder",
    "decoder parameters": "decoder",
    "corpus tokens": "corpus",
    "tokens": "tokens",
    "FLOPs": "flops",
}


@dataclasses.dataclass(frozen=True)
class Point:
    """Runs with the same inputs, which differ in their seeds.

    Args:
        log_loss: mean over the runs.
    """

    inputs: tuple[float, ...]
    runs: tuple[RunPoint, ...]

    @property
    def log_loss(self) -> float:
        return float(np.mean([math.log(run.loss) for run in self.runs]))


def read_runs(workdirs: Sequence[str]) -> tuple[list[RunPoint], list[str]]:
    """Return (complete runs in workdirs and their sweeps, names of the others).

    The others diverged, failed or have not ended. Raises UserError for a folder with neither, and
    for a run without a checkpoint or a validation loss, by its name.
    """
    runs, left_out = [], []
    for name in workdirs:
        folder = epath.Path(name)
        trials = [folder / "trials" / trial for trial in sorted(list_names(folder / "trials"))]
        if not trials and not (folder / "config.json").exists():
            raise UserError(f"{folder} is neither a run nor a sweep: name their workdirs.")
        for workdir in trials or [folder]:
            if (workdir / "complete.json").exists():
                runs.append(_read(workdir))
            else:
                left_out.append(workdir.name)
    return runs, left_out


def _read(workdir: epath.Path) -> RunPoint:
    steps = finished_steps(workdir / "checkpoints")
    if not steps:
        raise UserError(
            f"{workdir} has no checkpoint, from which its sizes are read: restore it, or leave the"
            " run out."
        )
    meta = read_meta(workdir / "checkpoints" / str(steps[-1]))
    lines = read_metrics(workdir)
    evaluations = [
        line for line in lines if line["step"] and math.isfinite(line.get("valid_nll", math.nan))
    ]
    if not evaluations:
        raise UserError(
            f"{workdir} has no validation loss: train it with config.data.valid and"
            " config.eval.every_steps."
        )
    best = min(evaluations, key=lambda line: line["valid_nll"])
    source, target = best["total_source_tokens"], best["total_target_tokens"]
    sizes = {side: 0 for side in ("encoder", "decoder")}
    for path, (_, shape) in meta["arrays"]["params"].items():
        side = path.partition("_")[0]
        if side in sizes and not path.startswith("decoder_start_token"):
            sizes[side] += math.prod(shape)
    return RunPoint(
        workdir.name,
        **sizes,
        tokens=float(target),
        corpus=float(meta["corpus_target_tokens"]),
        flops=6.0 * (sizes["encoder"] * source + sizes["decoder"] * target),
        loss=best["valid_nll"],
        tokenizer=meta["digests"]["tokenizer"],
    )


_SAME = 0.02
"""Relative difference of inputs within which runs are at the same point.

Tokens of updates differ between seeds.
"""


def group(runs: Iterable[RunPoint], names: Sequence[str]) -> list[Point]:
    """Group the runs by their inputs, ascending.

    The runs of a point have the mean of their inputs.
    """
    groups: list[list[RunPoint]] = []
    for run in sorted(runs, key=lambda run: run.inputs(names)):
        near = (g for g in groups if _same(g[0].inputs(names), run.inputs(names)))
        if (found := next(near, None)) is None:
            groups.append([run])
        else:
            found.append(run)
    return [
        Point(tuple(np.mean([run.inputs(names) for run in of_point], 0).tolist()), tuple(of_point))
        for of_point in groups
    ]


def _same(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=_SAME) for a, b in zip(first, second, strict=True))
