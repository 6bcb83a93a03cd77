"""`branch`: measure the critical batch size of a run after one of its updates."""

import argparse
import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np
from etils import epath

from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.errors import OK, STOPPED, NonFiniteUpdate, UserError, require
from t2t_flax.extensions.scaling.intervals import Interval
from t2t_flax.process_setup import ALONE
from t2t_flax.training.workdir import MARKER


def run(argv: list[str]) -> int:
    """Return exit code 0 when all branches are trained or have diverged.

    75 when one was stopped by a signal, saved.
    """
    parser = arguments.parser(
        "branch",
        "Trains branches of a run from one of its checkpoints on, with multiples of its batch size,"
        " each over the same tokens\nand with the learning rate times the root of the multiple. The"
        " largest batch whose validation loss at the end is\nwithin --tolerance of the smallest"
        " one's is the critical batch size at that update; beside it stands the gradient\nnoise"
        " scale.",
        epilog=(
            "Rerun the same command to continue after a kill.\n\n  python -m t2t_flax branch"
            " --workdir=runs/toy --step=600 --tokens=200000 --output=runs/toy-branches"
        ),
    )
    arguments.add_workdir(parser, "folder of the run")
    parser.add_argument(
        "--step",
        type=arguments.count(1),
        required=True,
        metavar="N",
        help="checkpoint to start from",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="folder of the branches, each of them a workdir",
    )
    tokens = "tokens that each branch is trained on, counted as data.batch_tokens"
    parser.add_argument(
        "--tokens", type=arguments.count(1), required=True, metavar="N", help=tokens
    )
    parser.add_argument(
        "--factors", default="0.5,1,2,4,8", metavar="K,K", help="of the batch size (0.5,1,2,4,8)"
    )
    parser.add_argument(
        "--seeds", type=arguments.count(1), default=1, metavar="N", help="branches of each size (1)"
    )
    tolerance = (
        "nats per token by which the loss of the critical batch size may be above that of the"
        " smallest (0.01)"
    )
    parser.add_argument("--tolerance", type=float, default=0.01, metavar="X", help=tolerance)
    noise = "batches of the smallest size for the noise scale (64); 0 = leave it out"
    parser.add_argument(
        "--noise-batches", type=arguments.count(), default=64, metavar="N", help=noise
    )
    args, overrides = arguments.parse(parser, argv)
    factors = _factors(args.factors)
    if 0 < args.noise_batches < 16:
        raise UserError(
            f"--noise-batches={args.noise_batches}: give 16 or more, or 0 to leave the noise scale"
            " out."
        )
    if args.noise_batches:
        require("scipy", "scaling", "--noise-batches")
    from t2t_flax import api
    from t2t_flax.config.overrides import check_lost, from_elsewhere
    from t2t_flax.distributed.coordination import require_single_process
    from t2t_flax.evaluation.restore import read_config, stored_config
    from t2t_flax.extensions.scaling import branches as lib
    from t2t_flax.process_setup import prepare_process
    from t2t_flax.training import workdir as workdir_lib
    from t2t_flax.training.parametrization import Parametrization, parametrization_of

    require_single_process("branch")
    workdir, output = epath.Path(args.workdir), epath.Path(args.output)
    stored = read_config(workdir, overrides)
    check_lost(from_elsewhere(workdir_lib.read_model_config(workdir) or stored, overrides)[1])
    lib.check_run(workdir, stored, args.step)
    prepare_process(
        stored_config(workdir, {k: v for k, v in overrides.items() if k.startswith("mesh.")})
    )
    cache = str(workdir / "data")
    branches = lib.plan(stored, args.step, factors, args.tokens, args.seeds, overrides, cache)
    lib.claim(output, workdir, args.step, args.tokens)
    for branch in branches:
        folder = output / branch.name
        if not folder.exists():
            lib.fork(workdir, args.step, branch, folder)
        elif (folder / MARKER).exists():
            print(f"{folder} has diverged before: delete it to train it again.", flush=True)
            continue
        try:
            with _alone():
                if not api.train(branch.config, folder).finished:
                    return STOPPED
        except NonFiniteUpdate as error:
            print(f"{folder} has diverged, its loss is NaN: {error}", flush=True)
    losses = {
        factor: [lib.final_loss(output / b.name) for b in branches if b.factor == factor]
        for factor in factors
    }
    partly = parametrization_of(stored) != Parametrization()
    if args.noise_batches and partly:
        print(
            "The gradient noise scale is left out: it is that of all parameters, and this run"
            " trains some of them."
        )
    scale = None
    if args.noise_batches and not partly:
        scale = _noise(args, output, workdir, min(branches, key=lambda branch: branch.factor))
    print(_table(stored, args, losses, scale))
    return OK


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Train as a run of one process, also on a TPU VM.

    There JAX would look for other processes after the devices were used.
    """
    before = os.environ.get(ALONE)
    os.environ[ALONE] = "1"
    try:
        yield
    finally:
        del os.environ[ALONE]
        os.environ.update({} if before is None else {ALONE: before})


def _factors(text: str) -> list[Fraction]:
    """Return the factors of --factors, ascending. Raises UserError."""
    try:
        factors = sorted({Fraction(part.strip()) for part in text.split(",")})
    except (ValueError, ZeroDivisionError):
        factors = []
    if len(factors) < 2 or factors[0] <= 0:
        raise UserError(
            f"--factors={text}: expected two numbers above 0 or more, separated by commas, as"
            " 0.5,1,2,4."
        )
    return factors


def _noise(args: argparse.Namespace, output: epath.Path, workdir: epath.Path, smallest) -> Interval:
    """Return the noise scale at the checkpoint, in target tokens."""
    from t2t_flax.data.dataset import prepare_corpus
    from t2t_flax.extensions.scaling.noise_scale import measure, noise_scale
    from t2t_flax.tasks import task_of
    from t2t_flax.training.checkpoint_selection import restore_params
    from t2t_flax.training.checkpoints import Checkpoints
    from t2t_flax.training.setup import set_up_training
    from t2t_flax.training.train_state import abstract_params
    from t2t_flax.training.workdir import read_config

    folder = output / smallest.name
    config = read_config(folder) or smallest.config
    setup = set_up_training(config, folder, prepare_corpus(task_of(config), folder))
    abstract = abstract_params(config.mesh, setup.model, setup.mesh)
    params, _ = restore_params(Checkpoints(workdir / "checkpoints"), args.step, abstract)
    return noise_scale(measure(setup, params, smallest.start, args.noise_batches))


def _table(
    stored: Config,
    args: argparse.Namespace,
    losses: Mapping[Fraction, Sequence[float]],
    noise: Interval | None,
) -> str:
    from t2t_flax.extensions.scaling.branches import critical_factor

    batch = stored.data.batch_tokens
    means = [(factor, float(np.mean(values))) for factor, values in losses.items()]
    smallest = means[0][1]
    lines = [
        f"branches of {args.workdir} after update {args.step}, {args.tokens:,} tokens each",
        "",
    ]
    lines.append(
        f"{'batch':>12}  {'factor':>6}  {'updates':>7}  {'loss':>8}  {'above':>8}  {'spread':>7}"
    )
    for factor, mean in means:
        spread = f"{np.std(losses[factor], ddof=1):.4f}" if len(losses[factor]) > 1 else ""
        size, updates = round(batch * factor), round(args.tokens / (batch * factor))
        lines.append(
            f"{size:>12,}  {float(factor):>6g}  {updates:>7,}  {mean:>8.4f} "
            f" {mean - smallest:>+8.4f}  {spread:>7}"
        )
    critical, bounded = critical_factor(means, args.tolerance)
    least = "" if bounded else "at least "
    found = f"{least}{round(batch * critical):,} tokens (within {args.tolerance:g} of the smallest)"
    if not math.isfinite(smallest):
        found = (
            "unknown, as the smallest batch diverged: give a lower --config.optimizer.peak_lr and"
            " another --output"
        )
    lines += ["", f"critical batch size: {found}"]
    if noise:
        shown = (
            f"{noise.value:,.0f} [{noise.low:,.0f}, {noise.high:,.0f}]"
            if math.isfinite(noise.value)
            else "infinite"
        )
        lines.append(
            f"gradient noise scale: {shown} target tokens, of {args.noise_batches} batches of the"
            " smallest size"
        )
    return "\n".join(lines)
