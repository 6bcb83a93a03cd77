"""Probe on one CPU device: in float32 with plain attention, and in bfloat16.

The distance of the two measures the effect of rounding.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.extensions.selftest.probe import Probe, draw_parameters
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.models.transformer import Transformer, matmul_precision_scope
from t2t_flax.training.losses import loss_sums
from t2t_flax.training.optimizer import apply_gradients, make_optimizer
from t2t_flax.training.parametrization import Parametrization, join, parametrization_of
from t2t_flax.training.parts import TrainState
from t2t_flax.training.train_state import abstract_state, make_model

_CHUNK = 2048
"""Tokens whose logits exist at once."""


def cpu_device() -> jax.Device:
    """Return a CPU device of this process.

    Raises UserError if JAX was told to use none.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        raise UserError(
            "the self-test compares with the CPU, which JAX_PLATFORMS leaves out: add cpu to it, as"
            " in JAX_PLATFORMS=cuda,cpu."
        ) from None


def activations(
    model: Transformer, params: Any, rows: Mapping[str, jax.Array], noise: Noise
) -> dict[str, jax.Array]:
    """Return outputs [B, L, ...] of the model's modules by name.

    They are in the order in which they are computed, the logits last.
    """
    found: dict[str, jax.Array] = {}
    batch_length = rows["target"].shape

    def keep(call, args, kwargs, context):
        out = call(*args, **kwargs)
        module, method = context.module, context.method_name
        traced = (
            isinstance(out, jax.Array) and jnp.issubdtype(out.dtype, jnp.floating) and out.ndim > 2
        )
        weights = module.name in ("score", "position_bias", "weight_dropout")  # [B, heads, L, L]
        if (
            traced
            and not weights
            and method in ("__call__", "attend", "logits")
            and out.shape[:2] == batch_length
        ):
            name = ".".join([*module.path, *([] if method == "__call__" else [method])])
            calls = sum(known.partition(" (")[0] == name for known in found)
            found[f"{name} (call {calls + 1})" if calls else name] = out
        return out

    with nn.intercept_methods(keep):
        plain = model.clone(remat="none")  # values may leave layers without remat
        hidden = plain.apply({"params": params}, rows, noise, method="hidden")
        plain.apply({"params": params}, hidden, method="logits")
    return found


@dataclasses.dataclass(frozen=True)
class Computed:
    """Results of the probe.

    Args:
        activations: activations of its first microbatch, the real columns.
        sums: sums over all tokens.
        grads: gradients per token.
    """

    activations: dict[str, np.ndarray]
    sums: dict[str, float]
    grads: Any


class Reference:
    """Probe on the CPU of this process.

    Args:
        state: state as the devices get it, NumPy arrays.
    """

    def __init__(self, probe: Probe):
        self.probe, self.device = probe, cpu_device()
        self.config = _plain(probe.config)
        self.parametrization = parametrization_of(self.config)
        self.tx = make_optimizer(self.config, self.parametrization)
        with jax.default_device(self.device):
            self.state = self._start()

    def _start(self) -> TrainState:
        model, mesh = (
            self._model("float32"),
            jax.sharding.Mesh(np.array(self.device).reshape(1, 1, 1), self.probe.mesh.axis_names),
        )
        abstract, _ = abstract_state(self.config, model, self.tx, self.parametrization, mesh)
        params = draw_parameters(abstract.params)
        trained, _ = self.parametrization.split(params)
        opt_state = jax.device_get(self.tx.init(trained))
        ema = params if self.config.optimizer.averages else None
        return TrainState(np.int32(0), params, opt_state, ema)  # type: ignore[arg-type]

    def _model(self, precision: str) -> Transformer:
        return make_model(self.config, *self.probe.vocab, platform="cpu", precision=precision)

    def compute(self, precision: str) -> Computed:
        """Compute everything in "float32" or "bfloat16"."""
        params, rows, numbers = self._on_cpu((self.state.params, self._rows(), self._numbers()))
        config, model = self.config, self._model(precision)
        first = self.probe.size[1]
        order: list[str] = []  # jit sorts the names

        @jax.jit
        def all_at_once(params, rows, numbers):
            (loss, others), grads = _gradient(config, model, self.parametrization)(
                params, rows, numbers
            )
            noise = Noise(noise_key(config.seed.dropout, 0), numbers[:first])
            seen = activations(
                model,
                self.parametrization.merge(params),
                {name: x[:first] for name, x in rows.items()},
                noise,
            )
            order.extend(seen)
            return (
                {name: x.astype(jnp.float32) for name, x in seen.items()},
                {"loss": loss} | others,
                grads,
            )

        seen, sums, grads = jax.device_get(all_at_once(params, rows, numbers))
        tokens = float(sums["tokens"])
        return Computed(
            {name: seen[name] for name in order},
            {name: float(value) for name, value in sums.items()},
            jax.tree.map(lambda g: g / np.float32(tokens), grads),
        )

    def updated(self, grads: Any, relative_noise: float = 0.0) -> TrainState:
        """Return the state after an update with these gradients, as NumPy arrays.

        The gradients belong to the trained parameters. Each element is first changed by at most a
        share of `relative_noise`.
        """
        rng = np.random.default_rng(1)

        def noisy(g):
            return g * (1 + np.float32(relative_noise) * (2 * rng.random(g.shape, np.float32) - 1))

        grads = jax.tree.map(noisy, grads) if relative_noise else grads
        return jax.device_get(self._update(*self._on_cpu((grads, self.state))))

    @functools.cached_property
    def _update(self):
        def update(grads, state):
            return apply_gradients(state, grads, self.tx, self.parametrization)

        return jax.jit(update)

    @functools.cached_property
    def products_of_optimizer(self) -> int:
        """Matrix products of the optimizer's update, which devices round more than sums."""
        trained, _ = self.parametrization.split(self.state.params)
        lowered = jax.jit(self.tx.update).lower(trained, self.state.opt_state, trained)
        return lowered.as_text().count("stablehlo.dot_general")

    def _rows(self) -> dict[str, np.ndarray]:
        return {
            name: x.reshape(-1, x.shape[-1])[:, : self.probe.real]
            for name, x in self.probe.arrays.items()
        }

    def _numbers(self) -> np.ndarray:
        return np.arange(self.probe.size[0] * self.probe.size[1], dtype=np.uint32)

    def _on_cpu(self, tree: Any) -> Any:
        return jax.device_put(tree, self.device)


def _plain(config: Config) -> Config:
    """Return the config without kernels and recomputation.

    Its logits have the CPU's chunk size. Results are the same.
    """
    plain = {
        "model.attention_kernel": "einsum",
        "train.remat": "none",
        "loss.logits_chunk_size": _CHUNK,
    }
    return config.with_values(
        plain | {"mesh.data": 1, "mesh.fsdp": 1, "mesh.tensor": 1, "mesh.slices": 0}
    )


def _gradient(config: Config, model: Transformer, parametrization: Parametrization):
    """Return a gradient function.

    It maps (params, rows [A * B, L], their numbers) -> ((loss, other sums), gradients of the
    trained parameters).
    """

    def gradient(params, rows, numbers):
        trained, frozen = parametrization.split(params)
        noise = Noise(noise_key(config.seed.dropout, 0), numbers)

        def loss(trained):
            return loss_sums(
                config, model, parametrization.merge(join(trained, frozen)), rows, noise
            )

        with matmul_precision_scope(model.matmul_precision):
            return jax.value_and_grad(loss, has_aux=True)(trained)

    return gradient
