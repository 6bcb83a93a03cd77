"""Sizes by rule: the maximal update parametrization (muP, Yang et al. 2021).

With it, a learning rate that was found on a narrow model suits a wide one. Its extension to depth
is CompleteP (Dey et al. 2025).
"""

from dataclasses import dataclass
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.keys import is_set, key
from t2t_flax.errors import UserError
from t2t_flax.registry import COMMANDS, GROUPS, Command, Group


@dataclass(frozen=True)
class Mup(Group):
    base_width: int = key(
        0,
        "d_model of the base model, whose initial values, logits and learning rates this one takes"
        " over by the rules of muP: d_ff and heads x d_v are taken to be in the same proportion"
        " there; 0 = the paper's formulas",
        low=0,
        high=2**16,
    )
    base_head_width: int = key(
        0,
        "d_k of the base model; 0 = model.d_k if it is set, else that of as many heads as here:"
        " base_width / num_heads",
        low=0,
        high=2**14,
        when=is_set("mup.base_width"),
    )
    base_layers: int = key(
        0,
        "layers of each stack of the base model: residual branches are base_layers / layers times"
        " as large; needs model.norm_placement = pre; 0 = they do not depend on the number of"
        " layers",
        low=0,
        high=2**10,
        when=is_set("mup.base_width"),
    )

    @classmethod
    def of(cls, config: Config) -> "Mup":
        return config.group("mup")

    def head_width(self, config: Config) -> float:
        """d_k of the base model.

        It need not be whole, since only its ratio to d_k counts.
        """
        m = config.model
        return self.base_head_width or m.d_k or self.base_width / m.num_heads

    def check(self, config: Config) -> None:
        """Raise UserError for settings without a rule."""
        if not self.base_width:
            return
        m, o, set_here = (
            config.model,
            config.optimizer,
            f"config.mup.base_width = {self.base_width}",
        )
        if o.schedule == "noam":
            peak = o.lr_scale * (self.base_width * o.warmup_steps) ** -0.5
            raise UserError(
                f"{set_here}: config.optimizer.schedule = noam falls with d_model. The same rates"
                " as the base model's are config.optimizer.schedule = inverse_sqrt with"
                f" config.optimizer.peak_lr = {peak:.6g}."
            )
        for name, possible, why in (
            ("optimizer.name", ("adam",), "its rates are rules for Adam"),
            (
                "model.mixer",
                ("attention", "local_attention"),
                "there are rules for attention alone",
            ),
            (
                "model.attention_score",
                ("scaled_dot",),
                "there is a rule for scaled dot products alone",
            ),
            (
                "model.embed_init",
                ("normal_rsqrt_d", "normal_1"),
                "Xavier's spread of a table has no base width",
            ),
        ):
            if config.value(name) not in possible:
                expected = " or ".join(possible)
                raise UserError(
                    f"{set_here} does not go with config.{name} = {config.value(name)}: {why}. Use"
                    f" {expected}."
                )
        if self.base_layers and m.norm_placement != "pre":
            raise UserError(
                f"config.mup.base_layers = {self.base_layers} does not go with"
                f" config.model.norm_placement = {m.norm_placement}: a norm after the sum undoes"
                " the scale of its branch. Use pre."
            )
        if m.tie_embeddings != "none" and m.norm_placement == "pre" and m.final_norm == "none":
            raise UserError(
                f"{set_here} needs a norm before the softmax, whose gain it scales:"
                " config.model.final_norm = none has none with pre-norm. Use auto, or"
                " config.model.tie_embeddings = none."
            )

    def parametrization(self, config: Config) -> Any:
        if not self.base_width:
            return None
        from t2t_flax.extensions.mup.parametrization import parametrization

        return parametrization(config)


_FOLDER = "t2t_flax.extensions.mup"

GROUPS.add("mup", Mup)
COMMANDS.add(
    "check_sizes",
    Command(
        f"{_FOLDER}.command",
        "coordinate check: how activations change with the width or depth of a model",
    ),
)
