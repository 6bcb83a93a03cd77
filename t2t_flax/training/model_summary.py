"""Summaries of a config or a run: parameters, batches, schedule, memory, devices.

The summary of a config reads no data.
"""

import dataclasses
import platform

import jax
import jax.numpy as jnp

from t2t_flax.config import Config
from t2t_flax.data.batching.rows import shape_of
from t2t_flax.data.dataset import describe_train
from t2t_flax.data.hooks import data_hooks, trained_tokens
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.mesh import Params
from t2t_flax.training.attention_kernel import explain_attention
from t2t_flax.training.flops import explain_flops
from t2t_flax.training.optimizer import learning_rate_schedule, make_optimizer
from t2t_flax.training.parametrization import Parametrization, parametrization_of
from t2t_flax.training.parts import TrainingSetup, TrainState
from t2t_flax.training.precision import compute_dtype
from t2t_flax.training.train_state import abstract_state, count_params, make_model, parameter_groups

_FILL = 0.97
"""Typical share of real tokens in packed rows."""


def describe(config: Config) -> str:
    """Describe a config: parameters, batch shapes, schedule, memory and FLOPs."""
    sizes, parametrization = (config.data.vocab_size,) * 2, parametrization_of(config)
    state = state_on_one_device(config, sizes)
    parts = [
        parametrization.explain(),
        _parameters(config, parametrization, state.params, sizes),
        _batches(config),
        _schedule(config),
        explain_attention(config, compute_dtype(config.train.precision)),
        _memory(config, parametrization, state),
        explain_flops(config, state.params, sizes[1], parametrization),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def describe_run(setup: TrainingSetup, group: ProcessGroup) -> list[str]:
    """Return lines about the data, the model, the batches and the devices of a run."""
    config, corpus, batches = setup.config, setup.corpus, setup.batches
    data, sizes = config.data, corpus.tokenizers.vocab_sizes
    trained, frozen = (
        count_params(part, config, *sizes)
        for part in setup.parametrization.split(setup.abstract.params)
    )
    processes = f" of {group.count} processes" if group.count > 1 else ""
    return [
        f"{data.train}: {describe_train(config, corpus)}",
        *(
            f"{name}: {store.describe()}"
            for name, store in corpus.valid.items()
            if store.meta["dropped"]
        ),
        (
            f"model: {trained + frozen:,}"
            f" parameters{f', {trained:,} of them trained' if frozen else ''}, vocabulary"
            f" {sizes[0]:,}{'' if data.joint_vocabulary else f' and {sizes[1]:,}'},"
            f" {setup.model.dtype.name} products"
        ),
        (
            f"batches: {data.batch_tokens:,} token slots a side, {batches.updates_per_epoch}"
            f" updates an epoch, shapes {', '.join(map(str, batches.shapes))}"
        ),
        (
            f"devices: {jax.device_count()} x {jax.devices()[0].device_kind}{processes}, mesh"
            f" {dict(setup.mesh.shape)}, Python {platform.python_version()}, jax {jax.__version__}"
        ),
    ]


def state_on_one_device(config: Config, sizes: tuple[int, int]) -> TrainState:
    """Return shapes and dtypes of the train state for these vocabulary sizes."""
    model, parametrization = make_model(config, *sizes), parametrization_of(config)
    one = mesh_lib.make_mesh(
        dataclasses.replace(config.mesh, data=1, fsdp=1, tensor=1), jax.devices()[:1]
    )
    tx = make_optimizer(config, parametrization)
    return abstract_state(config, model, tx, parametrization, one)[0]


def _parameters(
    config: Config, parametrization: Parametrization, params: Params, sizes: tuple[int, int]
) -> list[str]:
    groups = parameter_groups(params, config, *sizes)
    total = sum(groups.values())
    lines = [f"parameters (vocabulary {sizes[1]:,})"]
    lines += [f"  {name:32} {count:>14,}" for name, count in sorted(groups.items())]
    lines.append(f"  {'all':32} {total:>14,}")
    trained, frozen = (count_params(part, config, *sizes) for part in parametrization.split(params))
    lines += (
        [f"  {'trained':32} {trained:>14,}", f"  {'frozen':32} {frozen:>14,}"] if frozen else []
    )
    return lines


def _batches(config: Config) -> list[str]:
    d = config.data
    lines = [
        "batches",
        f"  an update has {d.batch_tokens:,} token slots on each side, over all devices",
    ]
    if d.batching == "packed":
        rows = max(1, d.batch_tokens // d.pack_length)
        data, fsdp, tensor = mesh_lib.mesh_shape(config.mesh, jax.device_count())
        shape = shape_of(d.pack_length, rows, d.microbatch_tokens, data * fsdp)
        devices = data * fsdp * tensor
        lines.append(
            f"  packed: {f'{shape.micro:,} microbatches of ' if shape.micro > 1 else ''}"
            f"{shape.rows:,} rows of {d.pack_length} on {devices:,} device{'s' * (devices > 1)} ="
            f" {shape.slots:,} slots, about {round(_FILL * rows * d.pack_length):,} real tokens"
        )
    else:
        lines.append(f"  buckets: rows of 8, 12, ... up to {d.max_length}, one pair per row")
    lines.append(
        f"  {config.train.steps:,} updates, {trained_tokens(config):,} token slots per side"
    )
    return lines + _sources(config)


def _sources(config: Config) -> list[str]:
    d, lines = config.data, []
    if d.train:
        lines.append(f"  dropped: {', '.join(_dropped(config))}")
    if len(names := list(d.train_sources)) > 1:
        lines.append(f"  sources: {', '.join(names)}")
    return lines + [f"  {line}" for hook in data_hooks(config) for line in hook.describe(None)]


def _dropped(config: Config) -> list[str]:
    """Describe the training pairs that are dropped."""
    d = config.data
    rules = [f"pairs of more than {d.max_length} tokens a side"] if d.on_too_long == "drop" else []
    return [*rules, "pairs with an empty side"]


def _schedule(config: Config) -> list[str]:
    o, last = config.optimizer, config.train.steps
    rate = learning_rate_schedule(config)
    steps = {
        1,
        o.warmup_steps // 2,
        o.warmup_steps,
        2 * o.warmup_steps,
        *(last * n // 4 for n in range(1, 5)),
    }
    shown = [step for step in sorted(steps) if 1 <= step <= last]
    return [
        f"learning rate ({o.name}, {o.schedule})",
        *(f"  update {step:>9,}   {float(rate(jnp.asarray(step))):.6e}" for step in shown),
    ]


def _memory(config: Config, parametrization: Parametrization, state: TrainState) -> list[str]:
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree)) / 2**20  # noqa: E731
    trees = {"parameters": state.params, "optimizer state": state.opt_state, "average": state.ema}
    lines = ["memory, of all devices together where it is sharded (MiB)"]
    lines += [
        f"  {name:32} {size(tree):>14,.1f}" for name, tree in trees.items() if tree is not None
    ]
    lines.append(f"  {'gradients':32} {size(parametrization.split(state.params)[0]):>14,.1f}")
    model = make_model(config, 8, 8)
    chunk = min(model.logits_chunk, config.data.microbatch_tokens or config.data.batch_tokens)
    logits = chunk * state.params[model.output_params[0]]["table"].shape[0] * model.dtype.itemsize
    lines.append(f"  {f'logits of {chunk:,} tokens':32} {logits / 2**20:>14,.1f}")
    lines.append(
        "  activations depend on the batch shapes: training checks them against device memory at"
        " the start"
    )
    return lines
