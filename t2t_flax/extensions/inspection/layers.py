"""What happens inside a run, layer by layer: a second program, beside the train step, measures every n-th update."""

import math
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from etils import epath
from flax.traverse_util import flatten_dict

from t2t_flax.config import Config
from t2t_flax.data.batching.batches import Shape
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.inspection import Inspection
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.models.transformer import Transformer
from t2t_flax.training.hooks import Hook
from t2t_flax.training.precision import casts_results, compiler_options
from t2t_flax.training.setup import DeviceBatch, TrainingSetup, batch_struct, compile_programs
from t2t_flax.training.train_state import TrainProgress, TrainState, parameters_of, run_params
from t2t_flax.training.train_step import train_step

MOST_TOKENS = 4096
"""Slots of the rows whose activations are measured: the first ones of the first microbatch."""
_DIGITS = 5
_SUBLAYERS = re.compile(r"(encoder|decoder)_\d+(/(?!residual)\w+)?")


class LayersHook(Hook):
    """Adds the statistics of `measure` to every n-th update. The program runs before the update, on its state and batch; the
    train step is the one of a run without the hook.
    """

    def __init__(self, every: int):
        self._every = every
        self._programs: dict[tuple[int, ...], jax.stages.Compiled] = {}
        self._names: list[str] = []
        self._measured: dict[int, jax.Array] = {}
        """By update, of those whose numbers are not yet known: with every = 1 the next one is measured before they are."""

    def on_start(self, run: TrainingSetup, progress: TrainProgress) -> None:
        def packed(state: TrainState, batch: dict[str, jax.Array]) -> jax.Array:
            found = measure(run, state, batch)
            self._names = list(found)
            return jnp.stack(list(found.values()))  # one array to fetch

        rows = mesh_lib.named(run.mesh, mesh_lib.MICRO_ROWS)
        program = jax.jit(
            packed,
            in_shardings=(run.shardings, rows),
            out_shardings=mesh_lib.named(run.mesh, mesh_lib.REPLICATED),
        )

        def lower(shape: Shape) -> jax.stages.Lowered:
            return program.lower(run.abstract, batch_struct(shape.array_shape, rows))

        def describe(shape: Shape) -> tuple[str, str]:
            what = f"measuring the layers for {shape} (config.inspection.layers_every)"
            return what, "Lower config.data.microbatch_tokens."

        options = compiler_options(run.config)
        self._programs = compile_programs(run.batches.shapes, lower, describe, run.mesh, options=options)

    def before_update(self, step: int, state: TrainState, batch: DeviceBatch) -> None:
        if step % self._every == 0:
            self._measured[step] = self._programs[batch.arrays["target"].shape](state, batch.arrays)

    def on_update(self, step: int, batch: DeviceBatch, values: dict[str, Any]) -> None:
        if step in self._measured:
            found = dict(zip(self._names, jax.device_get(self._measured.pop(step)).tolist(), strict=True))
            values |= {name: float(f"{x:.{_DIGITS}g}") for name, x in with_ratios(found).items() if math.isfinite(x)}


def with_ratios(found: Mapping[str, float]) -> dict[str, float]:
    """The statistics with `update_ratio/...`: RMS of the update over that of the parameters, where those are not 0."""
    of_parameters = {name.partition("/")[2]: x for name, x in found.items() if name.startswith("param_rms/") and x}
    ratios = {f"update_ratio/{name}": found[f"update_rms/{name}"] / x for name, x in of_parameters.items()}
    return {**found, **ratios}


def measure(run: TrainingSetup, state: TrainState, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """float32 scalars by name of the update that follows `state` with this batch [A, B, L]; traced.

    param_rms, grad_rms and update_rms / MODULE: root mean squares over a module's own trained kernels and biases: before the
    update; of the mean gradient per target token, before it is clipped; of new less old parameters. activation_rms / LAYER or
    SUB-LAYER, dead_units / FEED-FORWARD and attention_entropy / SUB-LAYER / HEAD: see `activations`, with the dropout of the
    update.
    """
    config, shards, platform = run.config, mesh_lib.batch_shards(run.mesh), run.mesh.devices.flat[0].platform
    parameters = parameters_of(config)
    shardings = jax.tree.map(lambda x: x.sharding, run_params(config, run.model, run.mesh, optimizer=True))
    moments, _ = parameters.split(shardings)
    cast = casts_results(config, platform)
    step = train_step(config, run.model, run.tx, shards=shards, moments=moments, hooks=[_Gradients()], cast=cast)
    new, metrics = step(state, batch)
    old_trained, new_trained = (parameters.split(each.params)[0] for each in (state, new))
    changes = jax.tree.map(jnp.subtract, new_trained, old_trained)
    found = {f"param_rms/{name}": x for name, x in root_mean_squares(old_trained).items()}
    found |= {name: x for name, x in metrics.items() if name.startswith("grad_rms/")}
    found |= {f"update_rms/{name}": x for name, x in root_mean_squares(changes).items()}

    _, rows, length = batch["target"].shape
    some = shards * max(1, min(rows // shards, MOST_TOKENS // (shards * length)))
    of_rows = mesh_lib.named(run.mesh, mesh_lib.ROWS)
    first = {name: jax.lax.with_sharding_constraint(x[0, :some], of_rows) for name, x in batch.items()}
    noise = Noise(noise_key(config.seed.dropout, state.step), jnp.arange(some, dtype=jnp.uint32))
    return found | activations(run.model, parameters.merge(state.params), first, noise)


class _Gradients(Hook):
    def measure(self, params: Any, grads: Any) -> dict[str, jax.Array]:
        return {f"grad_rms/{name}": x for name, x in root_mean_squares(grads).items()}


def root_mean_squares(tree: Mapping[str, Any]) -> dict[str, jax.Array]:
    """{module: over all elements of its own arrays} of a tree of parameters, float32."""
    arrays: dict[str, list[jax.Array]] = {}
    for path, x in flatten_dict(tree, sep="/").items():
        arrays.setdefault(path.rpartition("/")[0] or path, []).append(x)
    squares = lambda x: jnp.sum(jnp.square(x.astype(jnp.float32)))  # noqa: E731
    return {name: jnp.sqrt(sum(map(squares, xs)) / sum(x.size for x in xs)) for name, xs in arrays.items()}


def activations(
    model: Transformer, params: Any, rows: Mapping[str, jax.Array], noise: Noise | None
) -> dict[str, jax.Array]:
    """Statistics over the real tokens of rows [B, L], float32 scalars by name.

    activation_rms: root mean squares of the output of each layer, and of each sub-layer before it is added to its input.
    dead_units: share of the hidden units of a feed-forward network whose activation is 0 for every token. attention_entropy:
    in nats, the mean over queries, of each head; 0 = all weight on one token.
    """
    found: dict[str, jax.Array] = {}
    real = {side: rows[f"{side}_segments"] > 0 for side in ("source", "target")}

    def tokens(path: str) -> jax.Array:
        return real["source" if path.startswith("encoder_") else "target"]

    def keep(call, args, kwargs, context):
        out, path = call(*args, **kwargs), "/".join(context.module.path)
        if context.method_name != "__call__":
            return out
        if _SUBLAYERS.fullmatch(path):
            squares = jnp.square(out.astype(jnp.float32)).mean(-1)
            mean = jnp.where(tokens(path), squares, 0).sum() / tokens(path).sum()
            found[f"activation_rms/{path}"] = jnp.sqrt(mean)
        elif path.endswith("/hidden_dropout"):
            active = ((args[0] != 0) & tokens(path)[..., None]).any((0, 1))
            found[f"dead_units/{path.removesuffix('/hidden_dropout')}"] = 1 - active.astype(jnp.float32).mean()
        return out

    with nn.intercept_methods(keep):
        plain = model.clone(remat="none")  # whose values may leave the layers
        _, state = plain.apply({"params": params}, rows, noise, method="hidden", mutable=["intermediates"])
    for path, (weights_BxNxTxS, *_) in flatten_dict(state.get("intermediates", {}), sep="/").items():
        if path.endswith("_attention/weights"):
            entropy_BxNxT = jax.scipy.special.entr(weights_BxNxTxS).sum(-1)
            queries = tokens(path)
            heads = jnp.where(queries[:, None], entropy_BxNxT, 0).sum((0, 2)) / queries.sum()
            name = f"attention_entropy/{path.removesuffix('/weights')}"
            found |= {f"{name}/head_{number}": x for number, x in enumerate(heads)}
    return found


def hook(config: Config, workdir: epath.Path, group: Any) -> LayersHook:
    """Of a run whose inspection.layers_every is set; in every process."""
    return LayersHook(Inspection.of(config).layers_every)
