"""The state that a run carries between updates: arrays only, nothing static, no random key.

Dropout is a function of (seed, update), batches of (config, update): params, optimizer state and the step are all there
is to restore.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from t2t_flax.config import Config, Mesh
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.models.transformer import Transformer
from t2t_flax.registry import PARAMETERS
from t2t_flax.training.attention_kernel import attention_kernel
from t2t_flax.training.precision import MATMUL_PRECISION, compute_dtype

if TYPE_CHECKING:  # restoring parameters needs no optimizer
    import optax

    from t2t_flax.training.setup import TrainingSetup


@flax.struct.dataclass
class TrainState:
    """`step` int32: updates done. `ema`: average of the parameters (`optimizer.make_average`), or None."""

    step: jax.Array
    params: Any
    opt_state: Any
    ema: Any = None

    @property
    def eval_params(self) -> Any:
        """The parameters for evaluation: the average if there is one, else the parameters."""
        return self.params if self.ema is None else self.ema


@dataclasses.dataclass
class TrainProgress:
    """Host-side training state, stored in the checkpoint's metadata: all that a resumed run cannot derive from the config
    and the step.
    """

    step: int = 0
    metric_of: str = ""
    """`TrainingSetup.metric_of`, with which alone metrics can be compared."""
    best_metric: float | None = None
    best_step: int = 0
    evaluations_without_better: int = 0
    evaluation_due: bool = False
    """The run stopped before or during the evaluation of `step`; the resumed run starts with it."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """By bucket: compile, data, step, eval, save."""
    source_tokens: int = 0
    target_tokens: int = 0
    """Real tokens of all updates up to `step`, which batches that grow do not share evenly."""
    skipped_updates: int = 0
    skipped_in_a_row: int = 0
    """Of the updates up to `step`, the last ones that were skipped without one in between that was not."""
    config_changes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """`{"step", "changed"}` of each resume with other optimization keys (`changes_of_training`), oldest first."""

    def rounded_seconds(self) -> dict[str, float]:
        """The seconds to milliseconds."""
        return {name: round(value, 3) for name, value in self.seconds.items()}

    def of_evaluation(self) -> dict[str, Any]:
        """What an evaluation changes."""
        changed = (
            "metric_of", "best_metric", "best_step", "evaluations_without_better", "evaluation_due", "seconds"
        )  # fmt: skip
        return {name: getattr(self, name) for name in changed}


class Parameters:
    """Which parameters of a run are trained, and how those of its model follow from them. In the core they are those of the
    model, and all are trained; an extension replaces that for runs that set its keys.

    The optimizer, the gradient and its norm, weight decay and the moving average see the trained parameters alone, as a tree
    without the branches of the others.
    """

    @property
    def starts_trained(self) -> bool:
        """Whether a new run begins with trained parameters, which are evaluated before its first update."""
        return False

    def extend(self, params: dict[str, Any]) -> dict[str, Any]:
        """The run's parameters from those of its model, as ShapeDtypeStructs with shardings."""
        return params

    def init(self, params: dict[str, Any], structs: dict[str, Any], key: jax.Array) -> dict[str, Any]:
        """The run's parameters from the model's initial ones. structs: of the run."""
        return params

    def start(
        self, setup: "TrainingSetup", params: dict[str, Any], group: ProcessGroup | None, say: Callable[[str], None]
    ) -> dict[str, Any]:
        """The parameters with which a new run begins, from its initial ones. Raises UserError."""
        return params

    def direction(self, inner: "optax.GradientTransformation") -> "optax.GradientTransformation":
        """From gradients to a direction, before weight decay and the learning rate; `inner` is that of optimizer.name."""
        return inner

    def split(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(trained, frozen): the leaves of a tree of the run's parameters, or of one shaped like it, in two trees of dicts."""
        return dict(params), {}

    def merge(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The model's parameters; for use within a traced function."""
        return params

    def merge_on_devices(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """As `merge`, of arrays; the result has their shardings."""
        return params

    def of_model(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The run's parameters that are the model's own, unmerged."""
        return dict(params)

    def merged_config(self, config: Config) -> Config:
        """The config of a run that holds the result of `merge`."""
        return config

    def with_gradient(self, params: Mapping[str, Any]) -> Collection[str] | None:
        """Paths of the model's parameters whose gradient is computed, "encoder_0/feed_forward/..."; None = all."""
        return None

    def describe(self) -> list[str]:
        """Lines for `explain`: where the parameters come from."""
        return []


def parameters_of(config: Config) -> Parameters:
    """The parameters of a run with this config."""
    for module in PARAMETERS.of(config):
        return module.parameters(config)
    return Parameters()


def join(trained: Mapping[str, Any], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """The tree that `Parameters.split` divided."""
    if not frozen:
        return dict(trained)
    return unflatten_dict(flatten_dict(trained, sep="/") | flatten_dict(frozen, sep="/"), sep="/")


def make_model(
    config: Config, source_vocab: int, target_vocab: int, *, platform: str = "", precision: str = ""
) -> Transformer:
    """The module of a config for tokenizers of these sizes. `platform`: "cpu", "gpu" or "tpu", for which it is compiled;
    default JAX's own. It chooses the kernel of attention and the tokens whose logits are in memory at once. `precision`: of
    its products; default train.precision.
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


# A TPU keeps the logits of a chunk in VMEM. A GPU has no such memory: there each chunk costs a pass over the gradient of the
# table.
_LOGITS_CHUNK = {"cpu": 512, "gpu": 8192, "tpu": 1024}


def _init_params(model: Transformer, key: jax.Array):
    ids = jnp.ones((1, 8), jnp.int32)
    names = ("source", "source_segments", "source_positions", "target", "target_segments", "target_positions")
    return model.init(key, dict.fromkeys(names, ids))["params"]


@functools.lru_cache(maxsize=64)
def _boxed_shapes(model: Transformer) -> Any:
    """Shapes and logical axes of the parameters. Cached, because tracing a model takes most of a small run's start."""
    return jax.eval_shape(
        lambda: _init_params(model, jax.random.key(0))
    )  # traced, so that no device is needed for the key


def parameter_shapes(model: Transformer) -> Any:
    """ShapeDtypeStructs of the parameters, without shardings."""
    return _unboxed(_boxed_shapes(model))


@functools.lru_cache(maxsize=16)
def _init_program(model: Transformer, mesh: jax.sharding.Mesh, config: Mesh):
    """jitted key -> parameters, born sharded."""
    shardings = parameter_shardings(config, model, mesh)
    return jax.jit(lambda key: _unboxed(_init_params(model, key)), out_shardings=shardings)


def init_state(
    config: Config, model: Transformer, tx: "optax.GradientTransformation", mesh: jax.sharding.Mesh, *, abstract=False,
    start: Callable[[Any], Any] = lambda params: params,
) -> tuple[TrainState, TrainState]:  # fmt: skip
    """(state, its shardings). The state is born sharded; `abstract=True` gives ShapeDtypeStructs without device work. start: the
    parameters of update 0 from the initial ones.
    """
    parameters = parameters_of(config)

    def rest(params):
        ema = jax.tree.map(jnp.copy, params) if config.optimizer.averages else None
        return jnp.zeros((), jnp.int32), tx.init(parameters.split(params)[0]), ema

    param_shapes = run_params(config, model, mesh)
    with mesh_lib.use(mesh):
        step, opt_state, ema = jax.eval_shape(rest, param_shapes)
        trees = param_shapes, run_params(config, model, mesh, optimizer=True)
        param_shardings, in_optimizer = (jax.tree.map(lambda x: x.sharding, tree) for tree in trees)
        shardings = TrainState(
            mesh_lib.named(mesh, mesh_lib.REPLICATED),  # type: ignore[arg-type]  # a sharding for each array
            param_shardings,
            optimizer_shardings(opt_state, param_shapes, in_optimizer, mesh),
            ema and param_shardings,
        )
        if not abstract:
            key = jax.random.key(config.seed.init)
            params = start(parameters.init(_init_program(model, mesh, config.mesh)(key), param_shapes, key))
            others = (shardings.step, shardings.opt_state, shardings.ema)
            step, opt_state, ema = jax.jit(rest, out_shardings=others)(params)
            return TrainState(step, params, opt_state, ema), shardings
    shapes = TrainState(step, param_shapes, opt_state, ema)
    return _structs(shapes, shardings), shardings


def abstract_params(config: Mesh, model: Transformer, mesh: jax.sharding.Mesh, *, optimizer: bool = False) -> Any:
    """ShapeDtypeStructs of the model's parameters, with their shardings, see `parameter_shardings`."""
    return _structs(_unboxed(_boxed_shapes(model)), parameter_shardings(config, model, mesh, optimizer=optimizer))


def run_params(config: Config, model: Transformer, mesh: jax.sharding.Mesh, *, optimizer: bool = False) -> Any:
    """As `abstract_params`, of the run, see `Parameters`."""
    return parameters_of(config).extend(abstract_params(config.mesh, model, mesh, optimizer=optimizer))


def _structs(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)


def parameter_shardings(config: Mesh, model: Transformer, mesh: jax.sharding.Mesh, *, optimizer: bool = False) -> Any:
    """The sharding of each parameter or, if `optimizer`, of its optimizer state (sharded further by
    ZeRO-1).
    """
    return mesh_lib.shardings_of(_boxed_shapes(model), mesh, mesh_lib.parameter_rules(config, optimizer=optimizer))


def optimizer_shardings(opt_state: Any, params: Any, shardings: Any, mesh: jax.sharding.Mesh) -> Any:
    """The sharding of each leaf of the optimizer state: that of the parameter, in `shardings`, whose path and shape it has, such
    as Adam's moments; other leaves are replicated.
    """
    by_path = {
        path_names(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(jax.tree.leaves_with_path(params), jax.tree.leaves(shardings), strict=True)
    }
    longest = max(map(len, by_path))

    def sharding(path, leaf):
        names = path_names(path)
        suffixes = (names[-n:] for n in range(longest, 0, -1))
        shape, of_parameter = next((by_path[suffix] for suffix in suffixes if suffix in by_path), (None, None))
        return of_parameter if shape == leaf.shape else mesh_lib.named(mesh, mesh_lib.REPLICATED)

    return jax.tree_util.tree_map_with_path(sharding, opt_state)


def path_names(path: tuple) -> tuple[str, ...]:
    """The dict keys on the path of a leaf: `("encoder_0", "feed_forward", ...)`."""
    return tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey))


def _unboxed(tree: Any) -> Any:
    """Removes the boxes of logical names. (`nn.unbox` would reshard each leaf by the names alone.)"""
    is_box = lambda x: isinstance(x, nn.meta.AxisMetadata)  # noqa: E731
    return jax.tree.map(lambda x: x.unbox(apply_constraint=False) if is_box(x) else x, tree, is_leaf=is_box)


def count_params(params: Any, config: Config, source_vocab: int, target_vocab: int) -> int:
    """Parameters of the model; padded rows of the vocabulary are not counted."""
    return sum(parameter_groups(params, config, source_vocab, target_vocab).values())


def parameter_groups(params: Any, config: Config, source_vocab: int, target_vocab: int) -> dict[str, int]:
    """Parameters by group and by kind of sub-layer ("encoder self_attention"), padded vocabulary rows not counted."""
    groups: dict[str, int] = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        top, *rest = [key.key for key in path]
        stack = top.split("_")[0] if top.startswith(("encoder_", "decoder_")) and top != "decoder_start_token" else top
        kind = "norms" if any("norm" in key for key in [top, *rest]) else (rest or [top])[0]
        name = f"{stack} {kind}" if stack in ("encoder", "decoder") else top
        groups[name] = groups.get(name, 0) + leaf.size
    for name in groups:
        if name.endswith("_embedding") or name == "output_bias":
            vocab = source_vocab if name.startswith("source") else target_vocab
            width = 1 if name == "output_bias" else config.model.d_model
            groups[name] = vocab * width
    return groups
