"""Coordinate check (Yang et al. 2021, appendix D.1).

It measures how much the first updates change activations, by the size of the model.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config import Config
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.extensions.mup.rule import last_norm
from t2t_flax.models.transformer import Transformer
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import init_state, make_model
from t2t_flax.training.train_step import make_train_step

FLAT = (-0.5, 0.2)
"""Slopes between which a change counts as independent of the size.

Initial scores and logits, products of independent vectors over the width, fall with its root, and
so does their part of the first changes. Without a rule slopes are near 0.5 or 1.
"""
KINDS = ("embeddings", "scores", "attention", "feed-forward", "layers", "logits")
_VOCAB, _ROWS, _LENGTH = 128, 8, 16

Changes = dict[str, list[float]]
"""RMS change since the beginning after each update, by kind of activations."""


def at_width(config: Config, width: int) -> Config:
    """Return the config with another d_model, and d_ff and the heads in proportion.

    There are more heads where model.d_k or d_v is set, else wider ones. Raises UserError if these
    sizes are not whole.
    """
    m = config.model
    keys = ["d_ff", *(["num_heads", "num_kv_heads"] if m.d_k or m.d_v else [])]
    sizes = {f"model.{name}": getattr(m, name) * width / m.d_model for name in keys}
    if broken := [name for name, size in sizes.items() if not size.is_integer()]:
        raise UserError(
            f"width {width}: config.{broken[0]} would be {sizes[broken[0]]:g}, not a whole number."
        )
    found = config.with_values(
        {"model.d_model": width} | {name: int(size) for name, size in sizes.items()}
    )
    if not (m.d_k or m.d_v) and width % m.num_heads:
        raise UserError(
            f"width {width} is not a multiple of config.model.num_heads = {m.num_heads}."
        )
    return found


def at_depth(config: Config, layers: int) -> Config:
    """Return the config with another number of layers in each stack that it has."""
    stacks = ("model.num_encoder_layers", "model.num_decoder_layers")
    return config.with_values({name: layers for name in stacks if config.value(name)})


@dataclasses.dataclass(frozen=True)
class Check:
    """A coordinate check over one size.

    Fields are the name of the size, the config of a size, and the kinds of activations whose change
    must not depend on it.
    """

    size: str
    at_size: Callable[[Config, int], Config]
    flat: tuple[str, ...]


WIDTH = Check("d_model", at_width, KINDS)
# Branch outputs fall with depth by the rule.
DEPTH = Check("layers", at_depth, ("scores", "layers", "logits"))


def changes(config: Config, updates: int) -> Changes:
    """Train on one batch of random tokens, without dropout, in float32.

    The rate is constant, optimizer.peak_lr.
    """
    config = config.with_values(
        {
            "optimizer.schedule": "constant",
            "optimizer.warmup_steps": 1,
            "optimizer.schedule_first_step": 1,
            "seed.init": 0,
        }
        | {f"model.{name}": 0.0 for name in ("dropout", "dropout_attention", "dropout_ffn")}
        | {
            "loss.logits_chunk_size": 0,
            "optimizer.ema_decay": 0.0,
            "train.remat": "none",
            "train.precision": "float32",
        }
    )
    mesh = mesh_lib.make_mesh(
        dataclasses.replace(config.mesh, data=1, fsdp=1, tensor=1, slices=0), jax.devices()[:1]
    )
    model, parametrization = make_model(config, _VOCAB, _VOCAB), parametrization_of(config)
    tx = make_optimizer(config, parametrization)
    state, _ = init_state(config, model, tx, parametrization, mesh)
    rows, step = _rows(), jax.jit(make_train_step(config, model, tx, parametrization, mesh))
    look = jax.jit(lambda params: _activations(config, model, params, rows))
    batch = {name: x[None] for name, x in rows.items()}
    with mesh_lib.use(mesh):
        first = look(state.params)
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(updates):
            state, _ = step(state, batch)
            now = look(state.params)
            for kind, before in first.items():
                found[kind].append(_rms([x - y for x, y in zip(now[kind], before, strict=True)]))
    return found


def slopes(by_size: Mapping[int, Changes]) -> dict[str, float]:
    """Return for each kind the exponent of the size with which its change grows.

    The change is measured after the last update.
    """
    sizes = np.log(list(by_size))
    return {
        kind: float(
            np.polyfit(sizes, np.log([found[kind][-1] for found in by_size.values()]), 1)[0]
        )
        for kind in KINDS
    }


def is_flat(slope: float) -> bool:
    """Return True if a change is independent of the size."""
    return FLAT[0] < slope < FLAT[1]


def _rows() -> dict[str, jax.Array]:
    rng, shape = np.random.default_rng(0), (_ROWS, _LENGTH)
    positions, ones = (
        np.broadcast_to(np.arange(_LENGTH, dtype=np.int32), shape),
        np.ones(shape, np.int32),
    )
    sides = {side: rng.integers(3, _VOCAB, shape, dtype=np.int32) for side in ("source", "target")}
    more = {
        f"{side}_{name}": x
        for side in sides
        for name, x in (("segments", ones), ("positions", positions))
    }
    return {name: jnp.asarray(x) for name, x in (sides | more).items()}


def _activations(
    config: Config, model: Transformer, params, rows: dict[str, jax.Array]
) -> dict[str, list[jax.Array]]:
    """Return activations by kind, in the order in which they are computed.

    The output of the decoder's last norm is seen in the logits.
    """
    found: dict[str, list[jax.Array]] = {kind: [] for kind in KINDS}

    def keep(call, args, kwargs, context):
        out = call(*args, **kwargs)
        if context.method_name == "__call__" and (kind := _kind(config, context.module.path)):
            found[kind].append(out)
        return out

    with nn.intercept_methods(keep):
        model.apply({"params": params}, rows)
    return found


def _kind(config: Config, path: tuple[str, ...]) -> str | None:
    if not path:
        return "logits"
    ends = {
        "_embedding": "embeddings",
        "score": "scores",
        "attention/out": "attention",  # self-attention and cross-attention
        "feed_forward": "feed-forward",
        "residual_attention": "layers",
        "residual_cross": "layers",
        "residual_ffn": "layers",
    }
    if path == last_norm(config)[:-1]:
        return None
    return next((kind for end, kind in ends.items() if "/".join(path).endswith(end)), None)


def _rms(arrays: Sequence[jax.Array]) -> float:
    values = np.concatenate([np.ravel(x).astype(np.float64) for x in arrays])
    return float(np.sqrt(np.mean(values**2)))
