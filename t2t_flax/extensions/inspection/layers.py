"""Layer statistics of a run.

A second program beside the train step measures every n-th update.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from t2t_flax.data.batching.rows import Shape
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.extensions.inspection import Inspection
from t2t_flax.extensions.shared.recorded_gradients import Recorded, recording
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.models.transformer import Transformer
from t2t_flax.training.hooks import Hook
from t2t_flax.training.parts import DeviceBatch, TrainingSetup, TrainState
from t2t_flax.training.precision import compiler_options
from t2t_flax.training.setup import Program, batch_struct, compile_programs
from t2t_flax.training.train_step import make_train_step

MOST_TOKENS = 4096
"""Slots of the measured rows: the first ones of the first microbatch."""
_DIGITS = 5
_SUBLAYERS = re.compile(r"(encoder|decoder)_\d+(/(?!residual)\w+)?")


def hooks(setup: TrainingSetup) -> list[Hook]:
    """Return hooks that add the statistics of `measure` to every n-th update.

    Their program runs before the update, on its state and batch. The train step is the same as in a
    run without them.
    """
    every = Inspection.of(setup.config).layers_every
    programs, names = compile_measure(setup)
    measured: dict[int, jax.Array] = {}  # not yet fetched: two updates where every = 1

    def before(step: int, state: TrainState, batch: DeviceBatch) -> None:
        measured[step] = programs[batch.arrays["target"].shape](state, batch.arrays)

    def after(step: int, batch: DeviceBatch, values: dict[str, Any]) -> None:
        found = dict(zip(names, jax.device_get(measured.pop(step)).tolist(), strict=True))
        values |= {
            name: float(f"{x:.{_DIGITS}g}")
            for name, x in with_ratios(found).items()
            if math.isfinite(x)
        }

    return [Hook("before", before, every), Hook("update", after, every)]


def compile_measure(
    setup: TrainingSetup,
) -> tuple[dict[tuple[int, ...], jax.stages.Compiled], list[str]]:
    """Return (programs of `measure` by batch shape, names of their results).

    A program returns its results as one array.
    """
    names: list[str] = []

    def packed(state: TrainState, batch: dict[str, jax.Array]) -> jax.Array:
        found = measure(setup, state, batch)
        names[:] = found
        return jnp.stack(list(found.values()))  # one array, one fetch

    rows, whole = (
        mesh_lib.named(setup.mesh, spec) for spec in (mesh_lib.MICRO_ROWS, mesh_lib.REPLICATED)
    )
    function = jax.jit(packed, in_shardings=(setup.shardings, rows), out_shardings=whole)

    def inputs(shape: Shape) -> tuple:
        return setup.abstract, batch_struct(shape.array_shape, rows)

    def describe(shape: Shape) -> tuple[str, str]:
        what = f"measuring the layers for {shape} (config.inspection.layers_every)"
        return what, "Lower config.data.microbatch_tokens."

    program = Program(function, inputs, describe, compiler_options(setup.config))
    return compile_programs(program, setup.batches.shapes, setup.mesh), names


def with_ratios(found: Mapping[str, float]) -> dict[str, float]:
    """Return the statistics with `update_ratio/...`.

    That is the RMS of the update over the RMS of the parameters, where the latter is not 0.
    """
    of_parameters = {
        name.partition("/")[2]: x
        for name, x in found.items()
        if name.startswith("param_rms/") and x
    }
    ratios = {
        f"update_ratio/{name}": found[f"update_rms/{name}"] / x for name, x in of_parameters.items()
    }
    return {**found, **ratios}


def measure(
    setup: TrainingSetup, state: TrainState, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """Return statistics of the update of `state` with this batch [A, B, L]; traced.

    The values are float32 scalars by name.

    param_rms, grad_rms and update_rms / MODULE: root mean squares over a module's own trained
    kernels and biases: before the update; of the mean gradient per target token, before it is
    clipped; of new less old parameters. activation_rms / LAYER or SUB-LAYER, dead_units /
    FEED-FORWARD and attention_entropy / SUB-LAYER / HEAD: see `activations`, with the dropout of
    the update.
    """
    config, parametrization = setup.config, setup.parametrization
    shards = mesh_lib.batch_shards(setup.mesh)
    step = make_train_step(config, setup.model, recording(setup.tx), parametrization, setup.mesh)
    trained, _ = parametrization.split(state.params)
    # Remains if the update is not finite.
    unknown = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), trained)
    new, _ = step(dataclasses.replace(state, opt_state=Recorded(unknown, state.opt_state)), batch)
    old_trained, new_trained = (parametrization.split(each.params)[0] for each in (state, new))
    changes = jax.tree.map(jnp.subtract, new_trained, old_trained)
    found = {f"param_rms/{name}": x for name, x in root_mean_squares(old_trained).items()}
    found |= {f"grad_rms/{name}": x for name, x in root_mean_squares(new.opt_state.grads).items()}
    found |= {f"update_rms/{name}": x for name, x in root_mean_squares(changes).items()}

    _, rows, length = batch["target"].shape
    some = shards * max(1, min(rows // shards, MOST_TOKENS // (shards * length)))
    of_rows = mesh_lib.named(setup.mesh, mesh_lib.ROWS)
    first = {
        name: jax.lax.with_sharding_constraint(x[0, :some], of_rows) for name, x in batch.items()
    }
    noise = Noise(noise_key(config.seed.dropout, state.step), jnp.arange(some, dtype=jnp.uint32))
    return found | activations(setup.model, parametrization.merge(state.params), first, noise)


def root_mean_squares(tree: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return {module: RMS over all elements of its direct arrays}, float32.

    The arrays come from a tree of parameters.
    """
    arrays: dict[str, list[jax.Array]] = {}
    for path, x in flatten_dict(tree, sep="/").items():
        arrays.setdefault(path.rpartition("/")[0] or path, []).append(x)
    squares = lambda x: jnp.sum(jnp.square(x.astype(jnp.float32)))  # noqa: E731
    return {
        name: jnp.sqrt(sum(map(squares, xs)) / sum(x.size for x in xs))
        for name, xs in arrays.items()
    }


def activations(
    model: Transformer, params: Any, rows: Mapping[str, jax.Array], noise: Noise | None
) -> dict[str, jax.Array]:
    """Return statistics over the real tokens of rows [B, L], float32 scalars by name.

    activation_rms: root mean squares of the output of each layer, and of each sub-layer before it
    is added to its input. dead_units: share of the hidden units of a feed-forward network whose
    activation is 0 for every token. attention_entropy: in nats, the mean over queries, of each
    head; 0 = all weight on one token.
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
            found[f"dead_units/{path.removesuffix('/hidden_dropout')}"] = (
                1 - active.astype(jnp.float32).mean()
            )
        return out

    with nn.intercept_methods(keep):
        plain = model.clone(remat="none")  # values may leave layers without remat
        _, state = plain.apply(
            {"params": params}, rows, noise, method="hidden", mutable=["intermediates"]
        )
    for path, (weights_BxNxTxS, *_) in flatten_dict(
        state.get("intermediates", {}), sep="/"
    ).items():
        if path.endswith("_attention/weights"):
            entropy_BxNxT = jax.scipy.special.entr(weights_BxNxTxS).sum(-1)
            queries = tokens(path)
            heads = jnp.where(queries[:, None], entropy_BxNxT, 0).sum((0, 2)) / queries.sum()
            name = f"attention_entropy/{path.removesuffix('/weights')}"
            found |= {f"{name}/head_{number}": x for number, x in enumerate(heads)}
    return found
