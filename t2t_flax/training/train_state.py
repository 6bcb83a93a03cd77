"""Build the model and the state of a run, and the shardings of the state."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from t2t_flax.config import Config, Mesh
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.mesh import Params, PyTree
from t2t_flax.models.transformer import Transformer
from t2t_flax.training.attention_kernel import attention_kernel
from t2t_flax.training.parametrization import Parametrization, path_names, scaled
from t2t_flax.training.parts import TrainOptimizer, TrainState
from t2t_flax.training.precision import MATMUL_PRECISION, compute_dtype


def make_model(
    config: Config, source_vocab: int, target_vocab: int, *, platform: str = "", precision: str = ""
) -> Transformer:
    """Make the model of a config.

    Args:
        source_vocab: size of the source tokenizer.
        target_vocab: size of the target tokenizer.
        platform: "cpu", "gpu" or "tpu", default JAX's own. It decides the attention kernel and the
            default of loss.logits_chunk_size.
        precision: precision of matrix products; default train.precision.
    """
    precision = precision or config.train.precision
    dtype = compute_dtype(precision)
    platform = platform or jax.default_backend()
    kernel, _ = attention_kernel(config, dtype, platform)
    return Transformer(
        dataclasses.replace(config.model, attention_kernel=kernel),
        source_vocab,
        target_vocab,
        dtype=dtype,
        remat=config.train.remat,
        logits_chunk=config.loss.logits_chunk_size or _LOGITS_CHUNK.get(platform, 512),
        matmul_precision=MATMUL_PRECISION.get(precision),
    )


# A TPU keeps the logits of a chunk in VMEM. A GPU has no such memory: there each chunk costs a pass
# over the gradient of the table.
_LOGITS_CHUNK = {"cpu": 512, "gpu": 8192, "tpu": 1024}


def _init_params(model: Transformer, key: jax.Array):
    ids = jnp.ones((1, 8), jnp.int32)
    names = (
        "source",
        "source_segments",
        "source_positions",
        "target",
        "target_segments",
        "target_positions",
    )
    return model.init(key, dict.fromkeys(names, ids))["params"]


@functools.lru_cache(maxsize=64)
def _boxed_shapes(model: Transformer) -> PyTree:
    """Shapes and logical axes of the parameters.

    Cached, because tracing a model takes long.
    """
    return jax.eval_shape(
        lambda: _init_params(model, jax.random.key(0))
    )  # traced, so that no device is needed for the key


def parameter_shapes(model: Transformer) -> PyTree:
    """ShapeDtypeStructs of the parameters, without shardings."""
    return _unboxed(_boxed_shapes(model))


@functools.lru_cache(maxsize=16)
def _init_program(model: Transformer, mesh: jax.sharding.Mesh, config: Mesh):
    """Return the jitted function key -> parameters, which creates them sharded."""
    shardings = parameter_shardings(config, model, mesh)
    return jax.jit(lambda key: _unboxed(_init_params(model, key)), out_shardings=shardings)


def abstract_state(
    config: Config,
    model: Transformer,
    tx: TrainOptimizer,
    parametrization: Parametrization,
    mesh: jax.sharding.Mesh,
) -> tuple[TrainState, TrainState]:
    """Return the train state as ShapeDtypeStructs, and its shardings.

    Needs no work on a device.
    """
    params = run_params(config, model, parametrization, mesh)
    moments = run_params(config, model, parametrization, mesh, optimizer=True)
    with mesh_lib.use(mesh):
        step, opt_state, ema = jax.eval_shape(
            functools.partial(_rest_of_state, config, tx, parametrization), params
        )
    shardings = TrainState(
        mesh_lib.named(mesh, mesh_lib.REPLICATED),  # type: ignore[arg-type]  # shardings
        _shardings(params),
        optimizer_shardings(opt_state, params, _shardings(moments), mesh),
        ema and _shardings(params),
    )
    return _structs(TrainState(step, params, opt_state, ema), shardings), shardings


def init_state(
    config: Config,
    model: Transformer,
    tx: TrainOptimizer,
    parametrization: Parametrization,
    mesh: jax.sharding.Mesh,
    *,
    start: Callable[[Params], Params] = lambda params: params,
) -> tuple[TrainState, TrainState]:
    """Create the state before the first update, sharded; return it and its shardings.

    Args:
        start: maps the initial parameters to the ones that the training starts from.
    """
    abstract, shardings = abstract_state(config, model, tx, parametrization, mesh)
    key = jax.random.key(config.seed.init)
    with mesh_lib.use(mesh):
        params = _init_program(model, mesh, config.mesh)(key)
        if parametrization.scales:
            scale = functools.partial(
                scaled, scales=parametrization.scales(params), column="initial"
            )
            params = jax.jit(scale, out_shardings=shardings.params)(params)
        params = start(parametrization.initial(params, abstract.params, key))
        rest_shardings = shardings.step, shardings.opt_state, shardings.ema
        make_rest = functools.partial(_rest_of_state, config, tx, parametrization)
        step, opt_state, ema = jax.jit(make_rest, out_shardings=rest_shardings)(params)
    return TrainState(step, params, opt_state, ema), shardings


def _rest_of_state(
    config: Config, tx: TrainOptimizer, parametrization: Parametrization, params: Params
) -> tuple[jax.Array, PyTree, Params | None]:
    """Make the rest of a new state: step, optimizer state, average."""
    ema = jax.tree.map(jnp.copy, params) if config.optimizer.averages else None
    return jnp.zeros((), jnp.int32), tx.init(parametrization.split(params)[0]), ema


def _shardings(structs: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x.sharding, structs)


def abstract_params(
    config: Mesh, model: Transformer, mesh: jax.sharding.Mesh, *, optimizer: bool = False
) -> PyTree:
    """ShapeDtypeStructs of the model's parameters, with `parameter_shardings`."""
    return _structs(
        _unboxed(_boxed_shapes(model)),
        parameter_shardings(config, model, mesh, optimizer=optimizer),
    )


def run_params(
    config: Config,
    model: Transformer,
    parametrization: Parametrization,
    mesh: jax.sharding.Mesh,
    *,
    optimizer: bool = False,
) -> Params:
    """ShapeDtypeStructs of the run's parameters.

    They are `abstract_params` and the parameters that the run adds, such as adapters.
    """
    return parametrization.extend(abstract_params(config.mesh, model, mesh, optimizer=optimizer))


def gradient_shardings(
    config: Config, model: Transformer, parametrization: Parametrization, mesh: jax.sharding.Mesh
) -> Params:
    """Return the shardings of the gradients: the same as of the optimizer state."""
    trained, _ = parametrization.split(
        _shardings(run_params(config, model, parametrization, mesh, optimizer=True))
    )
    return trained


def _structs(shapes: PyTree, shardings: PyTree) -> PyTree:
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings
    )


def parameter_shardings(
    config: Mesh, model: Transformer, mesh: jax.sharding.Mesh, *, optimizer: bool = False
) -> PyTree:
    """Return the sharding of each parameter.

    Args:
        optimizer: return the sharding of its optimizer state instead.
    """
    return mesh_lib.shardings_of(
        _boxed_shapes(model), mesh, mesh_lib.parameter_rules(config, optimizer=optimizer)
    )


def optimizer_shardings(
    opt_state: PyTree, params: PyTree, shardings: PyTree, mesh: jax.sharding.Mesh
) -> PyTree:
    """Return the sharding of each leaf of the optimizer state.

    A leaf with the path and shape of a parameter, such as an Adam moment, gets the sharding that
    `shardings` has for that parameter. Other leaves are replicated.
    """
    by_path = {
        path_names(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree.leaves_with_path(params), jax.tree.leaves(shardings), strict=True
        )
    }
    longest = max(map(len, by_path))

    def sharding(path, leaf):
        names = path_names(path)
        suffixes = (names[-n:] for n in range(longest, 0, -1))
        shape, of_parameter = next(
            (by_path[suffix] for suffix in suffixes if suffix in by_path), (None, None)
        )
        return of_parameter if shape == leaf.shape else mesh_lib.named(mesh, mesh_lib.REPLICATED)

    return jax.tree_util.tree_map_with_path(sharding, opt_state)


def _unboxed(tree: PyTree) -> PyTree:
    """Remove the boxes that hold the logical axis names.

    `nn.unbox` would reshard each leaf by the names alone.
    """
    is_box = lambda x: isinstance(x, nn.meta.AxisMetadata)  # noqa: E731
    return jax.tree.map(
        lambda x: x.unbox(apply_constraint=False) if is_box(x) else x, tree, is_leaf=is_box
    )


def count_params(params: PyTree, config: Config, source_vocab: int, target_vocab: int) -> int:
    """Count the parameters, without the padded rows of the vocabulary."""
    return sum(parameter_groups(params, config, source_vocab, target_vocab).values())


def parameter_groups(
    params: PyTree, config: Config, source_vocab: int, target_vocab: int
) -> dict[str, int]:
    """Count parameters by group, such as "encoder self_attention".

    Padded rows of the vocabulary are not counted.
    """
    groups: dict[str, int] = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        top, *rest = [key.key for key in path]
        stack = (
            top.split("_")[0]
            if top.startswith(("encoder_", "decoder_")) and top != "decoder_start_token"
            else top
        )
        kind = "norms" if any("norm" in key for key in [top, *rest]) else (rest or [top])[0]
        name = f"{stack} {kind}" if stack in ("encoder", "decoder") else top
        groups[name] = groups.get(name, 0) + leaf.size
    for name in groups:
        if name.endswith("_embedding") or name == "output_bias":
            vocab = source_vocab if name.startswith("source") else target_vocab
            width = 1 if name == "output_bias" else config.model.d_model
            groups[name] = vocab * width
    return groups
