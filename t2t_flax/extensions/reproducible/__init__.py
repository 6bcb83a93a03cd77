"""The same bits on every mesh: sums over rows in an order that does not depend on the number of devices."""

from dataclasses import dataclass

from t2t_flax.config import Config
from t2t_flax.config.keys import key
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS, ROW_SUMS

_ELEMENTWISE = ("adam", "lion", "nadamw", "schedule_free_adamw")


@dataclass(frozen=True)
class Reproducible:
    slices: int = key(
        0,
        "equal parts of the rows of a microbatch, a power of two: their gradients are computed one by one, by the same program "
        "on any number of devices that divides it, and summed in one order, so that losses and parameters have the same bits on "
        "every data-parallel and FSDP mesh; 0 = off",
        low=0,
        high=2**16,
    )

    def check(self, config: Config) -> None:
        """Raises UserError for what has other bits on another mesh."""
        if not self.slices:
            return
        shown = f"config.reproducible.slices = {self.slices}"
        if self.slices & (self.slices - 1):
            raise UserError(f"{shown} is not a power of two, as a binary tree of sums needs.")
        if config.mesh.tensor != 1:
            raise UserError(
                f"{shown}: config.mesh.tensor = {config.mesh.tensor} divides the sums within matrix products, whose bits then "
                "depend on the mesh. Set mesh.tensor = 1 and use mesh.data and mesh.fsdp."
            )
        if config.model.attention_kernel in ("cudnn", "auto"):
            raise UserError(
                f"{shown}: config.model.attention_kernel = {config.model.attention_kernel}, but cuDNN's attention fails where "
                "XLA is told to keep the order of sums (jax 0.11.2, H100). Set model.attention_kernel = einsum, or splash on TPU."
            )
        if config.optimizer.name not in _ELEMENTWISE and config.mesh.fsdp != 1:
            raise UserError(
                f"{shown}: config.optimizer.name = {config.optimizer.name} may sum over whole matrices, which config.mesh.fsdp = "
                f"{config.mesh.fsdp} divides. Set mesh.fsdp = 1, or optimizer.name to one of {', '.join(_ELEMENTWISE)}."
            )


GROUPS.add("reproducible", Reproducible)
ROW_SUMS.add("t2t_flax.extensions.reproducible.tree_sums", "reproducible.slices")
