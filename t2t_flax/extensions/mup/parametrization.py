"""Parameters of a run with muP.

Initial values, gradients and rates are multiplied by the factors of `rule`.
"""

import functools

import jax

from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.extensions.mup import Mup
from t2t_flax.extensions.mup.rule import depth_scale, kind_of, rules
from t2t_flax.training.parametrization import Parametrization, Params, Path, Scale, path_names


def parametrization(config: Config) -> Parametrization:
    """Return the parameters of the model, scaled."""
    return Parametrization(
        scales=functools.partial(scales_of, config), explain=functools.partial(_explain, config)
    )


def scales_of(config: Config, tree: Params) -> dict[Path, Scale]:
    """Return the factors of each parameter, by the paths of a tree.

    Raises UserError for a parameter without rule, and if the norm that must be scaled has no gain.
    """
    by_kind, found = rules(config), {}
    paths = [path_names(path) for path, _ in jax.tree.leaves_with_path(tree)]
    kinds = {path: kind_of(path, config) for path in paths}
    for path, kind in kinds.items():
        if kind is None:
            raise UserError(
                f"config.mup.base_width = {Mup.of(config).base_width}: there is no rule for the"
                f" parameter {'/'.join(path)}, so its rate at another width is unknown. Leave out"
                " the layer that has it, or mup.base_width."
            )
        of_kind, of_depth = by_kind[kind], depth_scale(path, config)
        found[path] = Scale(*(x * y for x, y in zip(of_kind, of_depth, strict=True)))
    if "last norm" not in kinds.values() and by_kind["last norm"].initial != 1.0:
        raise UserError(
            f"config.mup.base_width = {Mup.of(config).base_width} scales the gain of the norm"
            f" before the softmax, but config.model.norm_type = {config.model.norm_type} has none."
        )
    return found


def _explain(config: Config) -> list[str]:
    """Return a section of `explain`: rates and initial values by kind of parameters."""
    m, keys = config.model, Mup.of(config)
    scale, head_width = keys.base_width / m.d_model, keys.head_width(config)
    lines = [
        (
            "widths by muP: rates and initial values of a base model with d_model"
            f" {keys.base_width}, d_ff {m.d_ff * scale:g}, d_k {head_width:g}"
        ),
        f"  {'':24} {'initial std':>12} {'in the base':>12} {'rate':>10}",
    ]
    for name, kind, here, base in _kinds(config):
        factors = rules(config)[kind]
        lines.append(
            f"  {name:24} {here * factors.initial:>12.4g} {base:>12.4g}"
            f" {f'x {factors.rate:.4g}':>10}"
        )
    lines.append(f"  {'other norms and biases':24} {'':25} {'x 1':>10}")
    if keys.base_layers:
        depths = (m.num_encoder_layers, m.num_decoder_layers)
        ratios = " and ".join(f"{keys.base_layers / layers:.4g}" for layers in depths if layers)
        lines.append(
            f"  residual branches x {ratios}, of a base model with {keys.base_layers} layers a"
            " stack"
        )
    return lines


def _kinds(config: Config) -> list[tuple[str, str, float, float]]:
    """Return the rows that `explain` shows.

    A row is (name, kind of `rule`, initial standard deviation without muP, the base model's); for
    the norm it has its gain instead.
    """
    m, scale = config.model, Mup.of(config).base_width / config.model.d_model
    (d_k, d_v), halved = m.head_widths, 0.5 if m.kernel_init == "xavier_qkv_rsqrt2" else 1.0
    table, base_table = (
        width**-0.5 if m.embed_init == "normal_rsqrt_d" else 1.0
        for width in (m.d_model, m.d_model * scale)
    )

    def matrix(name: str, inputs: int, outputs: int, share: float = 1.0, kind: str = "matrices"):
        fans = (inputs + outputs) / 2 / share  # Xavier initialization
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
