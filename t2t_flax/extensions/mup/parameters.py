"""The parameters of a run with muP: initial values and updates times the factors of `rule`."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.extensions.mup import Mup
from t2t_flax.extensions.mup.rule import Factors, depth_factors, kind_of, rules
from t2t_flax.registry import PARAMETERS
from t2t_flax.training.train_state import Parameters, path_names

if TYPE_CHECKING:
    import optax


def parameters(config: Config) -> "ScaledParameters":
    """Raises UserError where other keys say how parameters begin and are trained."""
    active = [module.__name__ for module in PARAMETERS.of(config)]
    others = [PARAMETERS[module][0].partition(".")[0] for module in active if module != __name__]
    if others:
        raise UserError(
            f"config.mup.base_width = {Mup.of(config).base_width} says how parameters begin and are trained, as do the keys "
            f"of config.{', config.'.join(others)}: leave out one of them."
        )
    return ScaledParameters(config)


@dataclasses.dataclass(frozen=True)
class ScaledParameters(Parameters):
    config: Config

    def init(self, params: dict[str, Any], structs: dict[str, Any], key: jax.Array) -> dict[str, Any]:
        factors = factors_of(self.config, params)
        shardings = jax.tree.map(lambda x: x.sharding, structs)
        return jax.jit(lambda tree: _times(tree, factors, "initial"), out_shardings=shardings)(params)

    def direction(self, inner: "optax.GradientTransformation") -> "optax.GradientTransformation":
        def update(grads, state, params=None):
            factors = factors_of(self.config, grads)
            updates, state = inner.update(_times(grads, factors, "gradient"), state, params)
            return _times(updates, factors, "update"), state

        return inner._replace(update=update)

    def describe(self) -> list[str]:
        m, keys = self.config.model, Mup.of(self.config)
        scale, head_width = keys.base_width / m.d_model, keys.head_width(self.config)
        lines = [
            f"widths by muP: rates and initial values of a base model with d_model {keys.base_width}, d_ff {m.d_ff * scale:g}, "
            f"d_k {head_width:g}",
            f"  {'':24} {'initial std':>12} {'in the base':>12} {'rate':>10}",
        ]
        for name, kind, here, base in _kinds(self.config):
            factors = rules(self.config)[kind]
            lines.append(f"  {name:24} {here * factors.initial:>12.4g} {base:>12.4g} {f'x {factors.update:.4g}':>10}")
        lines.append(f"  {'other norms and biases':24} {'':25} {'x 1':>10}")
        if keys.base_layers:
            depths = (m.num_encoder_layers, m.num_decoder_layers)
            ratios = " and ".join(f"{keys.base_layers / layers:.4g}" for layers in depths if layers)
            lines.append(f"  residual branches x {ratios}, of a base model with {keys.base_layers} layers a stack")
        return lines


def factors_of(config: Config, tree: Any) -> dict[tuple[str, ...], Factors]:
    """By the paths of a tree of parameters. Raises UserError for a parameter that there is no rule for, and where the norm that
    must be scaled has no gain.
    """
    by_kind, found = rules(config), {}
    paths = [path_names(path) for path, _ in jax.tree.leaves_with_path(tree)]
    kinds = {path: kind_of(path, config) for path in paths}
    for path, kind in kinds.items():
        if kind is None:
            raise UserError(
                f"config.mup.base_width = {Mup.of(config).base_width}: there is no rule for the parameter {'/'.join(path)}, so "
                "its rate at another width is unknown. Leave out the layer that has it, or mup.base_width."
            )
        found[path] = by_kind[kind] * depth_factors(path, config)
    if "last norm" not in kinds.values() and by_kind["last norm"].initial != 1.0:
        raise UserError(
            f"config.mup.base_width = {Mup.of(config).base_width} scales the gain of the norm before the softmax, but "
            f"config.model.norm_type = {config.model.norm_type} has none."
        )
    return found


def _times(tree: Any, factors: Mapping[tuple[str, ...], Factors], name: str) -> Any:
    def times(path, x):
        factor = getattr(factors[path_names(path)], name)
        return x if factor == 1.0 else x * factor

    return jax.tree_util.tree_map_with_path(times, tree)


def _kinds(config: Config) -> list[tuple[str, str, float, float]]:
    """(name, kind of `rule`, initial standard deviation without muP, the base model's) of what `explain` shows; of the norm its
    gain.
    """
    m, scale = config.model, Mup.of(config).base_width / config.model.d_model
    (d_k, d_v), halved = m.head_widths, 0.5 if m.kernel_init == "xavier_qkv_rsqrt2" else 1.0
    table, base_table = (
        width**-0.5 if m.embed_init == "normal_rsqrt_d" else 1.0 for width in (m.d_model, m.d_model * scale)
    )

    def matrix(name: str, inputs: int, outputs: int, share: float = 1.0, kind: str = "matrices"):
        fans = (inputs + outputs) / 2 / share  # Xavier's
        return name, kind, fans**-0.5, (scale * fans) ** -0.5

    return [
        ("tables", "tables", table, base_table),
        matrix("queries", m.d_model, m.num_heads * d_k, halved, "queries"),
        matrix("keys", m.d_model, m.key_heads * d_k, halved),
        matrix("values", m.d_model, m.key_heads * d_v, halved),
        matrix("outputs of attention", m.num_heads * d_v, m.d_model),
        matrix("feed-forward", m.d_model, m.d_ff),
        ("gain of the last norm", "last norm", 1.0, 1.0),
    ]
