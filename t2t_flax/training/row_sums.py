"""How gradients, losses and metrics are summed over the rows of a batch."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from t2t_flax.config import Config
from t2t_flax.distributed.mesh import batch_shards, over_shards, sum_over_shards, zeros_of_shards
from t2t_flax.registry import ROW_SUMS
from t2t_flax.training.losses import Sums

OfRows = Callable[[Any, Any], Any]
"""(parameters, rows [B, ...]) -> sums over the rows, a tree of float32 arrays."""


class RowSums:
    """In the core each device adds up its own rows, and XLA chooses the order in which the devices' sums are added; an extension
    replaces that for runs that set its keys. shards: a batch has a multiple of them as rows.
    """

    def __init__(self, shards: int = 1):
        self.shards = shards

    def of_update(
        self, micro: OfRows, trained: Any, parts: Any, zeros: Sums, dtype: jnp.dtype, moments: Any
    ) -> tuple[Any, Sums]:
        """(gradients, sums) of an update. micro: those of one of the microbatches [A, B, ...] in `parts`. zeros: the sums of no
        rows. dtype: of products. moments: shardings of the gradients that are wanted; or None.
        """
        of_no_rows = lambda: zeros_of_shards((trained, zeros), self.shards)  # noqa: E731
        grads, sums = accumulate(over_shards(micro, self.shards), trained, parts, of_no_rows)
        if self.shards > 1:
            exchanged = lambda g, to=None: sum_over_shards(g, dtype if g.ndim > 2 else g.dtype, to)  # noqa: E731
            grads = jax.tree.map(exchanged, grads, *(() if moments is None else (moments,)))
            sums = jax.tree.map(lambda x: x.sum(0), sums)
        return grads, sums

    def of_batch(self, function: OfRows, params: Any, rows: Any, zeros: Sums) -> Sums:
        """`function(params, rows)`, of a validation batch."""
        return function(params, rows)

    def norm(self, grads: Any) -> jax.Array:
        """The global norm of gradients."""
        return optax.tree.norm(grads)

    def apply(self, update: Callable[..., Any], *arrays: Any) -> Any:
        """`update(*arrays)`: gradients applied to parameters, element by element."""
        return update(*arrays)

    def compile(self, lowered: jax.stages.Lowered, options: Mapping[str, Any] | None = None) -> jax.stages.Compiled:
        """Compiles a program of these sums. options: of XLA."""
        return lowered.compile(dict(options) if options else None)


def accumulate(function: OfRows, params: Any, parts: Any, zeros: Callable[[], Any]) -> Any:
    """The sum of `function(params, rows)` over microbatches [A, B, ...], one after the other. zeros: of no microbatch."""
    if len(jax.tree.leaves(parts)[0]) == 1:  # a loop over one microbatch costs a tenth of the step
        return function(params, jax.tree.map(lambda x: x[0], parts))
    add = lambda total, rows: (jax.tree.map(jnp.add, total, function(params, rows)), None)  # noqa: E731
    return jax.lax.scan(add, zeros(), parts)[0]


def row_sums(config: Config, mesh: jax.sharding.Mesh) -> RowSums:
    """Those of a run. Raises UserError where they are not possible on the mesh."""
    for module in ROW_SUMS.of(config):
        return module.row_sums(config, mesh)
    return RowSums(batch_shards(mesh))
